"""The loop of a study: it draws trials while fewer than `n_jobs` run, runs them, and records how they end."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig

from hydrant.errors import ConfigError, JobFailed
from hydrant.files.atomic_write import replace_file
from hydrant.runs.folder import RunFolder, RunStatus, read_overrides, remove_if_empty, runs_of_sweep
from hydrant.runs.job import RunResult, report_part
from hydrant.runs.record import read_metrics
from hydrant.signals import Stopped
from hydrant.sweeps.executors.base import Ended, Executor, SweepJob, Unit
from hydrant.sweeps.fork_server.call import SignalForwarding, forward_signals
from hydrant.sweeps.optuna.trials import PendingTrial, Trials
from hydrant.sweeps.stack_plan import Lanes
from hydrant.sweeps.sweep import Sweep
from hydrant.terminal.console import relative, say
from hydrant.terminal.text import number

RESULTS = "optimization_results.yaml"


@dataclass(frozen=True)
class Limits:
    """When a study ends."""

    n_trials: int  # finished or pruned
    n_jobs: int  # at once, in one or more processes
    max_failures: int  # the failed trials of this start that are allowed


class SearchLoop:
    """Runs the trials of one start of a study.

    Args:
        compose_job: returns the job of a trial; raises ConfigError if it cannot run.
    """

    def __init__(
        self,
        trials: Trials,
        limits: Limits,
        sweep: Sweep,
        compose_job: Callable[[PendingTrial], SweepJob],
    ) -> None:
        self._trials, self._limits, self._sweep, self._compose_job = trials, limits, sweep, compose_job
        self._space, self._objectives = trials.search.space, trials.search.objectives
        self._pending: dict[int, PendingTrial] = {}  # the trials that run, by number
        self._waiting: list[int] = []  # the trials with the parameters of one that runs
        self._failures: dict[int, str] = {}  # the reason by the number of the trial
        self._stopped_status = 0  # exit status of a trial that received a signal itself

    def run(self, executor: Executor, lanes: Lanes, config: DictConfig) -> None:
        """Run trials until there are enough. Those that are drawn together may train together.

        Raises:
            JobFailed: too many trials failed, or an interrupted one cannot continue.
            Stopped: a signal arrived; the trials have saved their state, or are finished.
        """
        self._sweep.has_run = self._sweep.rules.may_fail = True
        runs = [run for run in runs_of_sweep(self._trials.folder) if run.status != RunStatus.DAMAGED]
        earlier_jobs = {run.path.resolve(): read_overrides(run.path) for run in runs}
        self._print_start()
        try:
            with (
                self._sweep.active(earlier_jobs),
                forward_signals() as signals,
                self._sweep.limited(signals),
                ThreadPoolExecutor(self._limits.n_jobs) as pool,
            ):
                self._sweep.files.write_config(config)
                running = dict["Future[Ended | None]", Unit]()
                while True:
                    for unit in self._sweep.units_of(self._draw(signals), executor, lanes):
                        running[pool.submit(_run, executor, unit, signals)] = unit
                    if not running:
                        break
                    ended, _ = wait(running, return_when=FIRST_COMPLETED)
                    for future in ended:
                        self._record_unit(running.pop(future), future.result())
        finally:
            self._report_best()
        if signals.signum is not None:
            raise Stopped(128 + signals.signum)
        if self._stopped_status:
            raise Stopped(self._stopped_status)
        if len(self._failures) > self._limits.max_failures:
            reasons = "; ".join(f"trial {number}: {why}" for number, why in self._failures.items())
            limit, num = f"hydra.sweeper.max_failures={self._limits.max_failures}", len(self._failures)
            raise JobFailed(f"{num} trial{'s' * (num != 1)} failed, more than {limit}: {reasons}")

    def _draw(self, signals: SignalForwarding) -> list[SweepJob]:
        """Draw trials until `n_jobs` run, and return their jobs. The same parameters train once."""
        drawn = list[SweepJob]()
        self._trials.interrupted += self._waiting
        self._waiting = []
        while signals.signum is None and self._needs_more():
            trial = self._trials.ask()
            if (known := self._trials.take_known(trial)) is not None:
                say(f"trial {trial.number}: the parameters of trial {known}, whose result it takes")
                continue
            if any(running.params == trial.params for running in self._pending.values()):
                self._waiting.append(trial.number)
                continue
            try:
                drawn.append(self._compose_job(trial))
            except ConfigError as error:
                self._record_failure(trial, str(error), is_reported=False)
            else:
                self._pending[trial.number] = trial
        return drawn

    def _needs_more(self) -> bool:
        limits, num_running = self._limits, len(self._pending)
        if num_running >= limits.n_jobs or self._stopped_status or len(self._failures) > limits.max_failures:
            return False
        if self._trials.num_finished + num_running + len(self._waiting) >= limits.n_trials:
            return False
        return bool(self._trials.interrupted) or not self._trials.is_exhausted

    def _record_unit(self, unit: Unit, ended: Ended | None) -> None:
        """Record the results of the trials that ran in one process; None: a signal came before it began."""
        trials = [self._pending.pop(job.number) for job in unit.jobs]
        if ended is None:
            remove_if_empty([job.folder for job in unit.jobs])
            return
        self._sweep.record(unit, ended)
        for trial, job, result in zip(trials, unit.jobs, ended.results, strict=True):
            self._record(trial, job, result)

    def _record(self, trial: PendingTrial, sweep_job: SweepJob, result: RunResult) -> None:
        """Record a trial's result in the study. A stopped trial continues in the next start."""
        if result.exit_status > 128:
            self._stopped_status = result.exit_status
        elif result.exit_status == ConfigError.exit_status and trial.has_begun:
            # The trial stays unfinished in the study: the next start continues it.
            raise JobFailed(f"trial {trial.number}: {result.message}")
        elif result.exit_status:
            self._record_failure(trial, result.message, is_reported=True)
        elif (run := RunFolder(sweep_job.folder)).status in (RunStatus.PRUNED, RunStatus.STOPPED):
            self._trials.tell(trial.number, None, is_pruned=True)
            self._say(sweep_job, f"{run.status} after update {run.summary['num_updates']}")
        else:
            self._record_values(trial, sweep_job, run.summary)

    def _record_values(self, trial: PendingTrial, sweep_job: SweepJob, summary: Mapping[str, Any]) -> None:
        rows = read_metrics(sweep_job.folder)
        candidates = [(objective.metric, objective.value(summary, rows)) for objective in self._objectives]
        if missing := [metric for metric, value in candidates if value is None]:
            self._record_failure(trial, f"it has no finite {', '.join(missing)}", is_reported=False)
            return
        values = [value for _, value in candidates if value is not None]
        self._trials.tell(trial.number, values)
        self._say(sweep_job, f"finished: {self._format(values)}")

    def _record_failure(self, trial: PendingTrial, message: str, *, is_reported: bool) -> None:
        self._failures[trial.number] = message
        self._trials.tell(trial.number, None)
        if not is_reported:
            report_part(RunResult.failed(message), f"job {trial.number}")

    def _say(self, sweep_job: SweepJob, text: str) -> None:
        if not sweep_job.in_table:
            say(f"job {sweep_job.number}: {text}")

    def _format(self, values: Sequence[float]) -> str:
        return ", ".join(
            f"{o.metric} {number(value, 6)}" for o, value in zip(self._objectives, values, strict=True)
        )

    def _print_start(self) -> None:
        finished, interrupted = self._trials.num_finished, len(self._trials.interrupted)
        limit = min(self._limits.n_trials, self._trials.size or self._limits.n_trials)
        text = f"{relative(self._trials.folder)}: {finished} of {limit} trials are finished"
        if interrupted:
            text += f"; continuing {interrupted} interrupted trial{'s' * (interrupted != 1)}"
        say(text)

    def _report_best(self) -> None:
        """Write the best trials to a file, and add them to the lines at the end of the sweep."""
        if not (best := self._trials.best()):
            return
        parse = self._space.parse_choices
        solutions = [{"params": parse(trial.params), "values": list(trial.values)} for trial in best]
        self._sweep.answer.result = {"best": solutions}
        results: dict[str, Any] = {"name": "optuna"}
        if len(self._objectives) > 1:
            results["solutions"] = solutions
        else:
            results |= {"best_params": solutions[0]["params"], "best_value": best[0].value}
        replace_file(Path(self._trials.folder, RESULTS), yaml.safe_dump(results, sort_keys=False))
        for trial in best:
            # Without `sweep=`, which would start another search. The parameters in its file are among the overrides.
            overrides = self._space.overrides(trial.params)
            words = [word for word in overrides if not word.startswith(("name=", "sweep="))]
            self._sweep.answer.lines.append(f"best: trial {trial.number}, {self._format(trial.values)}")
            self._sweep.answer.lines.append(f"  python train.py {shlex.join(words)}")


def _run(executor: Executor, unit: Unit, signals: SignalForwarding) -> Ended | None:
    """Run one unit and return how it ended; None if a signal arrived before it began."""
    return next((ended for _, ended in executor.run([unit], lambda: signals.signum)), None)
