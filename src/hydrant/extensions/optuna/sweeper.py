"""The Optuna sweeper: a search whose trials are the jobs of a sweep."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from hydrant.config.flat import shortened
from hydrant.config.metric_keys import check_logged, defines, unknown_mode
from hydrant.errors import ConfigError, JobFailed
from hydrant.files.plain_values import NotNegativeInt, Positive, PositiveInt
from hydrant.files.redaction import redacted
from hydrant.installation import require_extra
from hydrant.records import Objective
from hydrant.runs.folder import RunFolder, RunStatus, read_overrides, remove_if_empty, runs_of_sweep
from hydrant.runs.job import RunResult, report_part
from hydrant.runs.lock import exclusive
from hydrant.runs.record import read_metrics
from hydrant.signals import Stopped
from hydrant.sweeps.executors.base import Ended, Executor, Sequential, SweepJob, Unit
from hydrant.sweeps.fork_server.call import SignalForwarding, forward_signals
from hydrant.sweeps.grid import Context, GridSweeper
from hydrant.sweeps.preflight import trained_elsewhere
from hydrant.terminal.console import notice, relative, say
from hydrant.terminal.text import number

if TYPE_CHECKING:
    from hydrant.extensions.optuna.trials import PendingTrial, Space, Trials

_KEY = "hydra.sweeper"


class OptunaSweeper(GridSweeper):
    """Searches for the best values with Optuna. The same command continues the search.

    conf/hydra/sweeper/optuna.yaml describes the arguments. It draws trials while fewer than `n_jobs` run, runs them,
    and records how they end.
    """

    _trials: Trials

    def __init__(
        self,
        context: Context,
        *,
        params: Any,
        sampler: Any,
        pruner: Any,
        objectives: Any,
        n_trials: PositiveInt,
        n_jobs: PositiveInt | None,
        max_failures: NotNegativeInt,
        max_seconds: Positive | None = None,
    ) -> None:
        super().__init__(context, params=params, max_seconds=max_seconds)
        self._sampler, self._pruner, self._objectives = sampler, pruner, objectives
        self._n_trials, self._n_jobs, self._max_failures = n_trials, n_jobs, max_failures
        self._pending: dict[int, PendingTrial] = {}  # the trials that run, by number
        self._waiting: list[int] = []  # the trials with the parameters of one that runs
        self._failures: dict[int, str] = {}  # of this start: the reason by the number of the trial
        self._stopped_status = 0  # exit status of a trial that received a signal itself

    def run(self) -> None:
        require_extra("optuna", ["optuna"], "hydra/sweeper", "optuna")
        from hydrant.extensions.optuna import trials

        n_jobs = self._num_at_once()
        space = trials.read_space(self._overrides())
        trials.check_parts(self._sampler, self._pruner, space)
        config = self._check_values(space)
        self._objectives = self._read_objectives(config["best"])
        for metric in [objective.metric for objective in self._objectives]:
            check_logged(metric, config)
            if keys := [key for key in space.distributions if defines(key.lstrip("+"), metric)]:
                meaning = f"warning: {metric} is another quantity with each {', '.join(keys)}"
                notice(f"{meaning}, so the search does not find the best one; give another best.metric")
        with exclusive(self.folder):
            for run in [] if self.executor.is_remote else runs_of_sweep(self.folder):
                if reason := trained_elsewhere(run.path):
                    raise ConfigError("name", reason)
            search = trials.Search(space, self._objectives, self._sampler, self._pruner)
            self._trials = trials.Trials(self.folder, search)
            self._search(n_jobs)

    def _search(self, n_jobs: int) -> None:
        """Run trials until there are enough. Those that are drawn together may train together.

        Raises:
            JobFailed: too many trials failed, or an interrupted one cannot continue.
            Stopped: a signal arrived; the trials have saved their state, or are finished.
        """
        self.sweep.has_run = self.sweep.rules.may_fail = True
        runs = [run for run in runs_of_sweep(self.folder) if run.status != RunStatus.DAMAGED]
        earlier_jobs = {run.path.resolve(): read_overrides(run.path) for run in runs}
        self._print_start()
        try:
            with (
                self.sweep.active(earlier_jobs),
                forward_signals() as signals,
                self.sweep.limited(signals),
                ThreadPoolExecutor(n_jobs) as pool,
            ):
                self.sweep.files.write_config(self.config)
                running = dict["Future[Ended | None]", Unit]()
                while True:
                    for unit in self.executor.units(self._draw(signals)):
                        running[pool.submit(_run, self.executor, unit, signals)] = unit
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
        if len(self._failures) > self._max_failures:
            reasons = "; ".join(f"trial {number}: {why}" for number, why in self._failures.items())
            limit, num = f"{_KEY}.max_failures={self._max_failures}", len(self._failures)
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
                drawn.append(self._compose_trial(trial))
            except ConfigError as error:
                self._record_failure(trial, str(error), is_reported=False)
            else:
                self._pending[trial.number] = trial
        return drawn

    def _needs_more(self) -> bool:
        num_running = len(self._pending)
        ends = self._stopped_status or len(self._failures) > self._max_failures
        num_drawn = self._trials.num_finished + num_running + len(self._waiting)
        if ends or num_running >= self._num_at_once() or num_drawn >= self._n_trials:
            return False
        return bool(self._trials.interrupted) or not self._trials.is_exhausted

    def _record_unit(self, unit: Unit, ended: Ended | None) -> None:
        """Record the results of the trials that ran in one process; None: a signal came before it began."""
        trials = [self._pending.pop(job.number) for job in unit.jobs]
        if ended is None:
            remove_if_empty([job.folder for job in unit.jobs])
            return
        self.sweep.record(unit, ended)
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
        pairs = zip(self._objectives, values, strict=True)
        return ", ".join(f"{o.metric} {number(value, 6)}" for o, value in pairs)

    def _print_start(self) -> None:
        finished, interrupted = self._trials.num_finished, len(self._trials.interrupted)
        limit = min(self._n_trials, self._trials.size or self._n_trials)
        text = f"{relative(self.folder)}: {finished} of {limit} trials are finished"
        if interrupted:
            text += f"; continuing {interrupted} interrupted trial{'s' * (interrupted != 1)}"
        say(text)

    def _report_best(self) -> None:
        """Answer with the best trials, and add them to the lines at the end of the sweep."""
        space, best = self._trials.search.space, self._trials.best()
        solutions = [{"params": space.parse_choices(one.params), "values": [*one.values]} for one in best]  # pyrefly: ignore[not-iterable]  # it is complete
        self.sweep.answer.result = {"best": solutions} if best else {}
        for trial in best:
            words = [word for word in space.overrides(trial.params) if not word.startswith("name=")]
            self.sweep.answer.lines.append(f"best: trial {trial.number}, {self._format(trial.values)}")  # pyrefly: ignore[bad-argument-type]
            self.sweep.answer.lines.append(f"  python train.py {shlex.join(words)}")

    def _num_at_once(self) -> int:
        """Return how many trials run at once; raise ConfigError if so many cannot."""
        n_jobs = self._n_jobs
        if n_jobs is None:
            if self.executor.max_jobs is None:
                message = "needs a number, because hydra.launcher groups as many trials as are drawn at once"
                raise ConfigError(f"{_KEY}.n_jobs", message, remedy="give one")
            n_jobs = (self.executor.num_jobs or 1) * self.executor.max_jobs
        if n_jobs > 1 and isinstance(self.executor, Sequential):
            message = "the basic launcher runs one trial after another"
            raise ConfigError(f"{_KEY}.n_jobs", message, remedy="add hydra/launcher=local, or another one")
        return n_jobs

    def _read_objectives(self, best: Mapping[str, str]) -> list[Objective]:
        """Return the objectives; by default the metric of the best checkpoint.

        Raises:
            ConfigError: they are no list of metrics and modes, or nothing says what is better.
        """
        fields = [best] if self._objectives is None else self._objectives
        if fields == [best] and best["mode"] == "auto":
            raise unknown_mode("best.mode", best["metric"])
        try:
            return msgspec.convert(fields, Annotated[list[Objective], msgspec.Meta(min_length=1)])
        except msgspec.ValidationError as error:
            remedy = "write [{metric: val/accuracy, mode: max}], or null for best.metric"
            raise ConfigError(f"{_KEY}.objectives", f"{error}", remedy=remedy) from error

    def _check_values(self, space: Space) -> Mapping[str, Any]:
        """Check each value of the space once, with the first values of all other keys; return the first config.

        Raises:
            ConfigError: a value cannot be composed, or no job can run on this machine.
        """
        first = {key: space.values(key)[0] for key in space.distributions}
        varied = [{**first, key: value} for key in space.distributions for value in space.values(key)[1:]]
        words = [space.overrides(params) for params in (first, *varied)]
        jobs = [self._compose(job_words, number) for number, job_words in enumerate(words)]
        errors = [] if self.executor.is_remote else self.executor.check([job.config for job in jobs])
        if errors and errors[0] and all(errors):
            message = f"{errors[0].reason} [job: {' '.join(redacted(words[0]))}]"
            raise ConfigError(errors[0].key, message, remedy=errors[0].remedy)
        return jobs[0].config

    def _compose_trial(self, trial: PendingTrial) -> SweepJob:
        """Return the job of a trial, with a folder named after its number and parameters.

        Raises:
            ConfigError: its values do not fit together.
        """
        params = sorted(trial.params.items())
        labels = redacted([f"{key.lstrip('+')}={_short(value)}" for key, value in params])
        slug = re.sub(r"[^\w.%+-]", "-", "_".join([f"{trial.number:04d}", *labels]))
        overrides = self._trials.search.space.overrides(trial.params)
        one = self._compose(overrides, trial.number, shortened(slug, 120))
        planned = self.sweep.add(one, trial.number)
        return replace(planned, job=self._trials.job_of(trial, planned.job))


def _run(executor: Executor, unit: Unit, signals: SignalForwarding) -> Ended | None:
    """Run one unit and return how it ended; None if a signal arrived before it began."""
    all_ended = [ended for _, ended in executor.run([unit], lambda: signals.signum)]
    return all_ended[0] if all_ended and (signals.signum is None or unit.has_begun) else None


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
