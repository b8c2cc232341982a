"""A study's loop: trials are asked for as places become free, run, and told as they end."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hydrant.errors import ConfigError, JobFailed
from hydrant.executors import Executor, Work
from hydrant.isolation import Forwarding, Stopped, forwarding
from hydrant.job import Result, relative, remove_if_empty, report, say
from hydrant.objectives import Objective
from hydrant.runs import overrides_of, read_run, runs_of_sweep
from hydrant.study.space import Space
from hydrant.study.trials import Asked, Trials
from hydrant.sweep import Sweep
from hydrant.trackers.record import read_metrics, replace_file

RESULTS = "optimization_results.yaml"

_Running = dict["Future[Result | None]", tuple[Asked, Work]]


@dataclass(frozen=True)
class Limits:
    """When a study is over."""

    n_trials: int  # finished or pruned
    n_jobs: int  # at once
    max_failures: int  # that it goes on after, since it was started


class Loop:
    """One start of a study.

    Args:
        work_of: composes the job of a trial, or raises ConfigError where it cannot run.
    """

    def __init__(
        self,
        trials: Trials,
        space: Space,
        objectives: Sequence[Objective],
        limits: Limits,
        sweep: Sweep,
        work_of: Callable[[Asked], Work],
    ) -> None:
        self._trials, self._space, self._objectives, self._limits = trials, space, objectives, limits
        self._sweep, self._work_of = sweep, work_of
        self._began = time.time()
        self._failures: dict[int, str] = {}  # number of the trial -> why
        self._stopped = 0  # exit status of a trial that was asked to stop by itself

    def run(self, executor: Executor) -> None:
        """Until there are enough trials.

        Raises:
            JobFailed: too many failed, or one that has begun before cannot go on.
            Stopped: a signal arrived meanwhile; what ran has saved its state, or is done.
        """
        self._sweep.has_run = self._sweep.may_fail = True
        runs = [run for run in runs_of_sweep(self._trials.folder) if run.status != "damaged"]
        before = {run.path.resolve(): overrides_of(run.path) for run in runs}
        self._tell_start()
        try:
            with (
                self._sweep.going(self._trials.folder, before),
                forwarding() as signals,
                ThreadPoolExecutor(self._limits.n_jobs) as pool,
            ):
                running: _Running = {}
                while self._fill(running, pool, executor, signals):
                    ended, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in ended:
                        self._settle(*running.pop(future), future.result())
        finally:
            self._conclude()
        if signals.signum is not None:
            raise Stopped(128 + signals.signum)
        if self._stopped:
            raise Stopped(self._stopped)
        if len(self._failures) > self._limits.max_failures:
            reasons = "; ".join(f"trial {number}: {why}" for number, why in self._failures.items())
            limit = f"hydra.sweeper.max_failures={self._limits.max_failures}"
            num = len(self._failures)
            raise JobFailed(f"{num} trial{'s' * (num != 1)} failed, more than {limit}: {reasons}")

    def _fill(
        self, running: _Running, pool: ThreadPoolExecutor, executor: Executor, signals: Forwarding
    ) -> bool:
        """Start trials while there is room; whether any is under way."""
        while (
            signals.signum is None and len(running) < self._limits.n_jobs and self._wants_more(len(running))
        ):
            asked = self._trials.ask()
            try:
                work = self._work_of(asked)
            except ConfigError as error:
                self._fail(asked, str(error), is_new=True)
                continue
            running[pool.submit(_call, executor, work, signals)] = asked, work
        return bool(running)

    def _wants_more(self, num_running: int) -> bool:
        if self._stopped or len(self._failures) > self._limits.max_failures:
            return False
        if self._trials.num_finished + num_running >= self._limits.n_trials:
            return False
        return bool(self._trials.begun) or not self._trials.is_exhausted

    def _settle(self, asked: Asked, work: Work, result: Result | None) -> None:
        """Note what came of a trial, and tell the study; one that was asked to stop goes on next time."""
        if result is None:
            remove_if_empty([work.job.folder])
            return
        self._sweep.settle(work, result, self._began)
        if result.exit_status > 128:
            self._stopped = result.exit_status
            return
        if result.exit_status == ConfigError.exit_status and asked.has_begun:  # it can still be gone on with
            raise JobFailed(f"trial {asked.number}: {result.message}")
        if result.exit_status:
            self._fail(asked, result.message)
            return
        run = read_run(work.job.folder)
        if run.status == "pruned":
            self._trials.tell(asked.number, None, is_pruned=True)
            self._say(work, f"pruned after update {run.summary['num_updates']}")
            return
        rows = read_metrics(work.job.folder)
        found = [(objective, objective.value(run.summary, rows)) for objective in self._objectives]
        values = [value for _, value in found if value is not None]
        if len(values) < len(found):
            lacking = ", ".join(objective.metric for objective, value in found if value is None)
            self._fail(asked, f"it has no finite {lacking}", is_new=True)
            return
        self._trials.tell(asked.number, values)
        self._say(work, f"finished: {self._shown(values)}")

    def _fail(self, asked: Asked, why: str, *, is_new: bool = False) -> None:
        self._failures[asked.number] = why
        self._trials.tell(asked.number, None)
        if is_new:
            report(Result(1, None, why), f"job {asked.number}: ")

    def _say(self, work: Work, what: str) -> None:
        if not work.in_table:
            say(f"job {work.number}: {what}")

    def _shown(self, values: Sequence[float]) -> str:
        return ", ".join(f"{o.metric} {value:.6g}" for o, value in zip(self._objectives, values, strict=True))

    def _tell_start(self) -> None:
        finished, begun = self._trials.num_finished, len(self._trials.begun)
        limit = min(self._limits.n_trials, self._trials.size or self._limits.n_trials)
        goes_on = f", {begun} go on" if begun else ""
        say(f"{relative(self._trials.folder)}: {finished} of {limit} trials are finished{goes_on}")

    def _conclude(self) -> None:
        """Write and tell the best trials so far."""
        best = self._trials.best()
        if not best:
            return
        solutions = [
            {"params": self._space.meant(trial.params), "values": list(trial.values)} for trial in best
        ]
        told: dict[str, Any] = {"name": "optuna"}
        if len(self._objectives) > 1:
            told["solutions"] = solutions
        else:
            told |= {"best_params": solutions[0]["params"], "best_value": best[0].value}
        replace_file(Path(self._trials.folder, RESULTS), yaml.safe_dump(told, sort_keys=False))
        for trial in best:
            # The parameters of a file that `sweep=` chose are among them; the file itself would be another search.
            given = self._space.overrides(trial.params)
            words = [word for word in given if not word.startswith(("name=", "sweep="))]
            self._sweep.outcome.append(f"best: trial {trial.number}, {self._shown(trial.values)}")
            self._sweep.outcome.append(f"  python train.py {shlex.join(words)}")


def _call(executor: Executor, work: Work, signals: Forwarding) -> Result | None:
    """What a job gave; None where it was asked to stop before it began."""
    for _, result in executor.run([work], lambda: signals.signum):
        return result
    return None
