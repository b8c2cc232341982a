"""The grid sweeper, default of `--multirun`: it checks every job before the first one starts.

Its `Sweep` runs the jobs, each in a process of its own, and says what came of them.
"""

import re
import shlex
import signal
import sys
import threading
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from hydrant.config.check import built
from hydrant.config.command_line import check_grid
from hydrant.config.compose import JobComposer, grid
from hydrant.config.error_messages import explained
from hydrant.config.flat import JobFolders, register_resolvers
from hydrant.config.groups import check_grid_file, check_placed, group_options
from hydrant.errors import ConfigError, FolderInUse, HydrantError, JobFailed, RecordError
from hydrant.files.plain_values import Positive, PositiveInt
from hydrant.files.redaction import redacted
from hydrant.installation import entry_points, tell_listeners
from hydrant.runs.folder import RunFolder, RunStatus, mark_failed, remove_if_empty
from hydrant.runs.job import Job, RunResult, hydra_settings, job_of, place, report, report_part, write_records
from hydrant.runs.lock import LEASE, exclusive, is_in_use, shared
from hydrant.signals import Stopped, signal_name
from hydrant.sweeps import plan, preflight
from hydrant.sweeps import results_table as table
from hydrant.sweeps.executors.base import Ended, Executor, Sequential, SweepJob, Unit, executor_of
from hydrant.sweeps.fork_server.call import SignalForwarding, forward_signals, start_server
from hydrant.terminal.console import answer, is_terminal, relative, say, say_fields, show_activity, wants_json
from hydrant.terminal.text import number

_OUTCOMES: Mapping[str, str] = {
    RunStatus.PREEMPTED: "saved",
    RunStatus.PRUNED: "finished",
    RunStatus.STOPPED: "finished",
}
"""The words for states of runs in a sweep that was stopped, where they differ."""


@dataclass
class Rules:
    """What a sweeper wants of its sweep."""

    max_seconds: float | None = None  # since this process began; then the jobs save and stop
    may_fail: bool = False  # a failed job of a search does not fail the sweep
    has_best: bool = True  # whether the table of runs says something: not in a study, whose test decides


@dataclass
class Answer:
    """What a sweep has come to, beside its runs."""

    result: dict[str, Any] = field(default_factory=dict[str, Any])  # of a search or a study, for `--json`
    lines: list[str] = field(default_factory=list[str])  # printed below the table
    ended_by: str = ""  # the limit that has ended the sweep, for its users
    is_out_of_time: bool = False
    stop_status: int = 0  # 128 + the signal that has stopped it
    failure: HydrantError | None = None  # of its command


class Sweep:
    """The sweep that one `--multirun` command runs in this process.

    Args:
        folder: that of the sweep.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.rules, self.answer = folder, Rules(), Answer()
        self.files = plan.SweepFiles(folder)
        self._live = entry_points("hydrant.progress").get("table") if is_terminal(sys.stdout) else None
        self.has_run = False
        self._jobs = dict[Path, SweepJob]()
        self._failed = set[Path]()  # the folders of jobs that failed in this process
        self._refresh = plan.sparing(self.files.refresh)  # its time grows with the number of runs

    @property
    def same_command(self) -> str:
        """How to continue, in words: with the folder if the sweep has no name."""
        return next((job.job.same_command() for job in self._jobs.values()), "the same command")

    @contextmanager
    def command(self) -> Generator[None]:
        """Let others find the command of this block. Keep how it ended for `close`, if jobs have run."""
        try:
            with plan.named_command(self.folder):
                yield
        except Stopped as stop:
            self.answer.stop_status = stop.exit_status
        except (HydrantError, KeyboardInterrupt) as error:
            if not self.has_run:
                raise
            is_stop = isinstance(error, KeyboardInterrupt)
            self.answer.stop_status, self.answer.failure = (130, None) if is_stop else (0, error)

    @property
    def _mode(self) -> str:
        """`best.mode` of the jobs, or of the runs of a search that has ended: it adds no jobs."""
        for one in self._jobs.values() or self.files.runs():
            with suppress(RecordError):  # the table shows it as damaged
                if "best" in one.config:
                    return one.config["best"]["mode"]
        return ""

    @contextmanager
    def active(self, jobs: Mapping[Path, Sequence[str]]) -> Generator[None]:
        """Plan `jobs` (overrides by folder), and show the progress of the sweep if stdout is a terminal.

        `add` adds jobs that are not planned yet. The caller holds the lock of the sweep's folder.

        Raises:
            ConfigError: the folder holds files of the user that the sweep would replace.
        """
        self.files.check_replaced()
        self.files.add(jobs.items())
        name = relative(self.folder)

        def lines(width: int, height: int) -> list[str]:
            return table.render_table(name, plan.sweep_progress(self.folder), width, height)

        with nullcontext() if self._live is None else self._live.load()(lines):
            yield

    def add(self, job: SweepJob, number: int) -> SweepJob:
        """Plan a job, if it is not planned yet, and return it for `run_all`."""
        if job.folder not in self.files.jobs:
            self.files.add([(job.folder, job.job.overrides)])
        in_table, earlier = self._live is not None or wants_json(), self.files.jobs[job.folder].earlier
        self._jobs[job.folder] = job = replace(job, number=number, in_table=in_table, earlier=earlier)
        return job

    def run_all(self, jobs: Sequence[SweepJob], executor: Executor) -> dict[int, RunResult]:
        """Run the jobs that are not finished, and return the results of all by job number.

        Args:
            jobs: as `add` returns them.
            executor: groups and runs them.

        Raises:
            Stopped: a signal arrived here or at a job; the jobs have saved their state, or are finished.
        """
        results = {job.number: done for job in jobs if (done := _result_if_finished(job)) is not None}
        unfinished = [job for job in jobs if job.number not in results]
        if not unfinished:
            return results
        units = executor.units(unfinished)
        try:
            with (
                forward_signals() as signals,
                self.limited(signals),
                closing(executor.run(units, lambda: signals.signum)) as running,
            ):
                for unit, ended in running:
                    self.has_run = True
                    self.record(unit, ended)
                    for job, result in zip(unit.jobs, ended.results, strict=True):
                        results[job.number] = result
                        if not (result.exit_status or job.in_table or isinstance(executor, Sequential)):
                            best = RunFolder(job.folder).summary.get("best")
                            value = best and f": {best['metric']} {number(best['value'])}"
                            say(f"job {job.number}: {job.folder.name} has finished{value or ''}")
        finally:
            remove_if_empty([job.folder for job in jobs])
        if signals.signum is not None:
            raise Stopped(128 + signals.signum)
        if stopped := [result.exit_status for result in results.values() if result.exit_status > 128]:
            raise Stopped(max(stopped))
        return results

    @contextmanager
    def limited(self, signals: SignalForwarding) -> Generator[None]:
        """Stop the jobs of this block, as a signal does, when `max_seconds` are over."""
        if (seconds := self.rules.max_seconds) is None:
            yield
            return

        def stop() -> None:
            self.answer.is_out_of_time = True
            self.answer.ended_by = f"hydra.sweeper.max_seconds={seconds:g}"
            signals.handle(signal.SIGTERM, None)

        timer = threading.Timer(max(seconds - self.files.wall_seconds, 0.0), stop)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # so that it does not signal what comes later

    def record(self, unit: Unit, ended: Ended) -> None:
        """Write the results of a unit into the files of the sweep, and print why jobs failed."""
        self.files.of_jobs += ended.processor_seconds
        for job, result in zip(unit.jobs, ended.results, strict=True):
            if result.exit_status == ConfigError.exit_status:
                remove_if_empty([job.folder])
                self.files.jobs[job.folder].refused = result.message
                self.files.write_plan()
            elif 0 < result.exit_status < 128:
                self._failed.add(job.folder)
                _record_failure(job, result)
        self._refresh()
        for job, result in zip(unit.jobs, ended.results, strict=True):
            report_part(result, f"job {job.number}")

    def close(self) -> int:
        """Write and print the table of results, and what is left to train; return the exit status of the command."""
        ended, runs = self.answer, self.files.runs()
        if has_begun := any(run.has_begun for run in runs):
            self._conclude(runs)
        limit = [f"{ended.ended_by} has ended the sweep; with a larger one, it continues"] * bool(
            ended.ended_by
        )
        for line in [*ended.lines, *limit]:
            say(line)
        has_refused = any(job.refused for job in self.files.jobs.values())
        has_failed = any(r.status == RunStatus.FAILED and r.path.resolve() in self._failed for r in runs)
        status = 0 if ended.is_out_of_time else ended.stop_status  # as it was asked to
        if wants_json():
            answer(self.plain())
            if status:
                message = f"stopped by {signal_name(status - 128)}; {self.same_command} continues the sweep"
                report(RunResult.stopped(status - 128, message))
        if ended.failure and not status:
            report(RunResult.failed(str(ended.failure), remedy=ended.failure.advice))
        is_failure = has_begun and not self.rules.may_fail and (has_refused or has_failed)
        return status or int(is_failure or ended.failure is not None)

    def _conclude(self, runs: Sequence[RunFolder]) -> None:
        """Write the last files of a sweep, and print its table and what follows from it."""
        self.files.write_table(runs)
        self.files.write_plan()
        tell_listeners("on_sweep_end", self.folder, runs, self._mode)
        progress, name = plan.sweep_progress(self.folder), relative(self.folder)
        if self.rules.has_best and not wants_json():
            rest = f" (hydrant status {shlex.quote(name)} --all lists them)"
            table.print_runs(name, progress, table.MAX_PRINTED + 3, self._mode, rest)
            for claim in dict.fromkeys(job.config["claim"] for job in self._jobs.values()):
                if claim:
                    say(f"claim: {claim}")
        if self.answer.stop_status:
            states = Counter(_OUTCOMES.get(r.state, r.state) for r in runs if r.path in self.files.jobs)
            shown = dict.fromkeys(["finished", "saved", "not started", *states])
            counted = ", ".join(f"{states[outcome]} {outcome}" for outcome in shown)
            say(f"\nstopped: {counted}; {self.same_command} continues the sweep")
        elif not wants_json():
            say("")
            best = table.best_run(progress, self._mode) if self.rules.has_best else None
            say_fields(table.closing_fields(self.folder, progress, self.files.wall_seconds, best))

    def plain(self) -> dict[str, Any]:
        """Return what the sweep has come to, in plain types: `hydrant status --json --all` has each run."""
        runs = plan.sweep_progress(self.folder)
        troubles = [run for run in runs if run.message and run.state != RunStatus.QUEUED]
        of_jobs = {"best": table.best_run(runs, self._mode), "ended_by": self.answer.ended_by}
        return {
            "result": self.answer.result,
            "folder": relative(self.folder),
            "states": dict(Counter(str(run.state) for run in runs)),
            **(of_jobs if self.rules.has_best else {}),
            "errors": [{"run": run.run, "message": run.message} for run in troubles[: table.MAX_PRINTED]],
            "wall_seconds": self.files.total[0],
            "processor_seconds": self.files.total[1],
        }


@dataclass(frozen=True)
class Context:
    """What a sweeper works with."""

    config: DictConfig  # of the sweep, with the node `hydra`
    composer: JobComposer
    sweep: Sweep


_KEY = "hydra.sweeper"


_Fault = tuple[ConfigError, Sequence[str]]
"""Why a job cannot run, and the words of the job."""


class GridSweeper:
    """Runs a job for every combination of values.

    If one of the jobs cannot run, none starts. If a job fails later, the others still run.

    Args:
        context: the sweep that begins.
        max_batch_size: jobs that the launcher gets at once; null: all.
        max_runs: runs that may begin in the folder of the sweep, over all starts; null: all.
        max_seconds: of this start; then the jobs save and stop, and no other starts; null: no limit.
        params: overrides to add, by key.
    """

    def __init__(
        self,
        context: Context,
        *,
        max_batch_size: PositiveInt | None = None,
        params: Mapping[str, Any] | None = None,
        max_runs: PositiveInt | None = None,
        max_seconds: Positive | None = None,
    ) -> None:
        self._max_runs, context.sweep.rules.max_seconds = max_runs, max_seconds
        self.config, self.sweep, self._composer = context.config, context.sweep, context.composer
        with hydra_settings(context.config.hydra):
            self.executor = executor_of(_resolved(context.config.hydra.launcher, "hydra.launcher"))
        context.sweep.files.queues = self.executor.queues
        self.folder = context.sweep.folder
        self._max_batch_size, self._params = max_batch_size, params or {}
        self._needs_server = False  # to be started while jobs are composed

    def run(self) -> None:
        """Check and run the jobs.

        Raises:
            ConfigError: a job cannot run, so none has started.
            JobFailed: a job failed.
            Stopped: a signal arrived.
        """
        overrides = self._overrides()
        check_grid(overrides)
        swept = [o.get_key_element().lstrip("+~") for o in overrides if o.is_sweep_override()]
        recorded = plan.recorded_jobs(self.folder)
        register_resolvers(JobFolders(swept, recorded))
        job_words = grid(overrides)
        jobs, faults = self._compose_all(job_words)
        unfinished = [job for job in jobs if not preflight.is_finished(job.config, RunFolder(job.folder))]
        faults = faults or self._find_faults(unfinished)
        if faults:
            error, words = faults[0]
            counts = f"{len(faults):,} of {len(job_words):,} jobs cannot run, so none starts"
            raise error.at(error.key, f"; {counts} (the first: {' '.join(redacted(words))})")
        self.sweep.files.keeps_plan = is_in_use(self.folder)
        self.sweep.files.adds_seeds = plan.adds_seeds(
            self.folder, recorded, [job.job.overrides for job in jobs]
        )
        finished = {job.folder: job not in unfinished for job in jobs}
        say(preflight.describe_start(self.folder, finished, keeps_plan=self.sweep.files.keeps_plan))
        self._launch(jobs)

    def _overrides(self) -> list[Override]:
        """Return the sweeper's own parameters, then the overrides of the command line without `sweep=lr`.

        The parameters of that are among its own. So the jobs equal those of a command with these and no `sweep=`.
        """
        check_placed(self.config)
        check_grid_file(self.config.hydra.runtime.choices.get("sweep"))
        params = [f"{key}={value}" for key, value in self._params.items()]
        words: Any = OmegaConf.to_container(self.config.hydra.overrides.task)  # with interpolations
        overrides = self._composer.parse([*params, *words])
        check_grid(override for override in overrides if override.key_or_group == "sweep")
        return [override for override in overrides if override.key_or_group != "sweep"]

    def _find_faults(self, jobs: Sequence[SweepJob]) -> list[_Fault]:
        """Return why jobs cannot run on this machine; nothing if a launcher runs them on others."""
        if not jobs or self.executor.is_remote:
            return []
        reasons = [(preflight.trained_elsewhere(job.folder), job.words) for job in jobs]
        if elsewhere := [(ConfigError("name", reason), words) for reason, words in reasons if reason]:
            return elsewhere
        errors = self.executor.find_errors(jobs)
        return [(error, job.words) for job, error in zip(jobs, errors, strict=True) if error]

    def _launch(self, jobs: Sequence[SweepJob]) -> None:
        size = self._max_batch_size or len(jobs)
        overrides = {job.folder: job.job.overrides for job in jobs}
        with shared(self.folder), self.sweep.active(overrides):
            self.sweep.files.write_config(self.config)
            allowed = self._allowed(jobs)
            failures = [self._run_batch(allowed[n : n + size], n) for n in range(0, len(allowed), size)]
        if failed := list(filter(None, failures)):
            raise JobFailed(failed[0])

    def _allowed(self, jobs: Sequence[SweepJob]) -> Sequence[SweepJob]:
        """Return the jobs that have begun, and as many others as `max_runs` allows."""
        if self._max_runs is None:
            return jobs
        begun = {job.folder for job in jobs if RunFolder(job.folder).has_begun}
        num_left = max(self._max_runs - len(begun), 0)
        new = [job.folder for job in jobs if job.folder not in begun]
        if new[num_left:]:
            self.sweep.answer.ended_by = f"{_KEY}.max_runs={self._max_runs}"
        allowed = begun | set(new[:num_left])
        return [job for job in jobs if job.folder in allowed]

    def _run_batch(self, jobs: Sequence[SweepJob], first: int) -> str:
        """Run jobs, the first of which has this number; return why the first failed one failed, "" if none did."""
        planned = [self.sweep.add(job, number) for number, job in enumerate(jobs, first)]
        results = self.sweep.run_all(planned, self.executor)
        failed = [f"job {n}: {result.message}" for n, result in sorted(results.items()) if result.exit_status]
        return failed[0] if failed else ""

    def _compose_all(self, jobs: Sequence[Sequence[str]]) -> tuple[list[SweepJob], list[_Fault]]:
        """Return the composed jobs, and why others cannot be composed or run in their folder."""
        composed, faults = dict[Path, SweepJob](), list[_Fault]()
        self._needs_server = not self.executor.is_remote and _have_same_options(jobs)
        for index, words in enumerate(jobs):
            if index % 10 == 0 and len(jobs) > 1:
                show_activity(f"composed {index:,} of {len(jobs):,} jobs")
            try:
                job = self._compose(words, index)
                if job.folder in composed:
                    message = f"another job has the same folder, {job.folder.name}"
                    raise ConfigError("", message, remedy="give each value once")
                composed[job.folder] = job
                preflight.check_same_config(job.config, job.folder)
            except HydrantError as error:
                faults.append(
                    (error if isinstance(error, ConfigError) else ConfigError("", str(error)), words)
                )
        return list(composed.values()), faults

    @explained()
    def _compose(self, words: Sequence[str], number: int, subdir: str | None = None) -> SweepJob:
        config = self._composer.compose(words)
        for key in config.hydra.sweeper.get("params") or {}:
            if key not in self._params:
                reason = (
                    f"the values of {key} are set by an option that the sweep varies, such as experiment=a,b"
                )
                remedy = "give each such option a command of its own; with the same name=<folder> they are one sweep"
                raise ConfigError(f"{_KEY}.params", reason, remedy=remedy)
        if subdir is not None:
            config.hydra.sweep.subdir = subdir
        environment = dict(config.hydra.job.env_set)
        placed = place(config, number)
        if self._needs_server and RunFolder(placed.folder).state != RunStatus.FINISHED:
            self._needs_server = False  # it imports while this process imports and composes
            start_server(self.executor.unit.paths_to_preload([cast("Any", OmegaConf.to_container(config))]))
        job = job_of(config, placed)
        _check_folder(job, self.folder)
        return SweepJob(job, words, environment)


def _check_folder(job: Job, of_sweep: Path) -> None:
    """Raise ConfigError if the folder of a job is not inside that of the sweep."""
    assert job.sweep_folder is not None
    folder, sweep = job.folder.resolve(), of_sweep.resolve()
    is_of_sweep = job.sweep_folder.resolve() == sweep
    if not is_of_sweep or sweep.is_relative_to(folder):
        key = "name" if job.config["name"] is not None else "hydra.sweep.dir"
        where = f"gives a job the folder {relative(folder)}, and the sweep has {relative(sweep)}"
        remedy = "all jobs of a sweep are in its folder, where each has its own: give one text without ${...}"
        raise ConfigError("hydra.sweep.subdir" if is_of_sweep else key, where, remedy=remedy)


def _have_same_options(jobs: Sequence[Sequence[str]]) -> bool:
    """Return whether jobs differ in values only, so that they need the same modules."""
    groups = group_options() if len(jobs) > 1 else {}
    options = {
        tuple(word for word in words if re.split("[@=]", word.lstrip("+~"))[0] in groups) for words in jobs
    }
    return len(options) == 1


def sweeper_of(context: Context) -> GridSweeper:
    """Return the sweeper that the config of a sweep chooses: `hydra/sweeper=grid`.

    Raises:
        ConfigError: it takes other arguments.
    """
    with hydra_settings(context.config.hydra):
        node = _resolved(context.config.hydra.sweeper, _KEY)
    return built({"context": context, **node}, _KEY, "sweeper", GridSweeper)


def _resolved(node: DictConfig | None, key: str) -> dict[str, Any]:
    """Return a node that names a class, in plain types."""
    if not isinstance(node, DictConfig) or "_target_" not in node:
        raise ConfigError(key.replace(".", "/", 1), "needs an option, see --help")
    return cast("dict[str, Any]", OmegaConf.to_container(node, resolve=True, throw_on_missing=True))


def _record_failure(job: SweepJob, result: RunResult) -> None:
    """Write the failure of a job that did not write it, because it died or failed before it had its folder."""
    run = RunFolder(job.folder)
    if run.status == RunStatus.FAILED and run.summary_time != job.earlier:
        return
    # Not if another start of this sweep has begun to train it.
    with plan.print_write_errors(job.folder), suppress(FolderInUse), exclusive(job.folder):
        if RunFolder(job.folder).newest_checkpoint is None:  # else the config of its run stays
            write_records(job.job)
        mark_failed(job.folder, result.message)


def _result_if_finished(job: SweepJob) -> RunResult | None:
    """Return the recorded result of a job that is finished; None if it must run."""
    if not preflight.is_finished(job.config, RunFolder(job.folder)):
        return None
    if (job.folder / LEASE).exists():  # the process of the job was killed as it ended
        with suppress(FolderInUse), exclusive(job.folder):
            pass
    if not job.in_table:
        say(f"job {job.number}: already finished: {relative(job.job.folder)}")
    return job.recorded(RunResult.failed(""))
