"""`RunningSweep`: runs the jobs of a sweep, each in a process of its own, and says what came of them."""

import shlex
import signal
import sys
import threading
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hydrant.errors import ConfigError, FolderInUse, HydrantError, JobFailed, RecordError
from hydrant.installation import entry_points, tell_listeners
from hydrant.runs.folder import RunFolder, RunStatus, mark, remove_if_empty, result_values
from hydrant.runs.job import RunResult, report, report_part, write_records
from hydrant.runs.lock import LEASE, exclusive
from hydrant.signals import Stopped, signal_name
from hydrant.sweeps import plan, preflight, results_table
from hydrant.sweeps.executors.base import Ended, Executor, Sequential, SweepJob, Unit
from hydrant.sweeps.fork_server.call import SignalForwarding, forward_signals
from hydrant.terminal.console import answer, is_terminal, relative, say, say_fields, wants_json

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
class Conclusion:
    """What a sweep has come to, beside its runs."""

    result: dict[str, Any] = field(default_factory=dict[str, Any])  # of a search or a study, for `--json`
    lines: list[str] = field(default_factory=list[str])  # printed below the table
    ended_by: str = ""  # the limit that has ended the sweep, for its users
    is_out_of_time: bool = False
    stop_status: int = 0  # 128 + the signal that has stopped it
    failure: HydrantError | None = None  # of its command


class RunningSweep:
    """The sweep that one `--multirun` command runs in this process.

    Args:
        folder: that of the sweep.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.rules, self.answer = folder, Rules(), Conclusion()
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
            return results_table.render_table(name, plan.sweep_progress(self.folder), width, height)

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
                # What a signal ended before it began counts as not started.
                for unit, ended in ((u, e) for u, e in running if signals.signum is None or u.has_begun):
                    self.has_run = True
                    self.record(unit, ended)
                    for job, result in zip(unit.jobs, ended.results, strict=True):
                        results[job.number] = result
                        if not (result.exit_status or job.in_table or isinstance(executor, Sequential)):
                            shown = result_values(RunFolder(job.folder).summary)
                            say(f"job {job.number}: {job.folder.name} has finished{shown and f': {shown}'}")
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
        limit = [f"{ended.ended_by} has ended the sweep; a larger one continues it"] * bool(ended.ended_by)
        for line in [*ended.lines, *limit]:
            say(line)
        has_refused = any(job.refused for job in self.files.jobs.values())
        has_failed = any(r.status == RunStatus.FAILED and r.path.resolve() in self._failed for r in runs)
        status = 0 if ended.is_out_of_time else ended.stop_status  # as it was asked to
        if wants_json():
            answer(self.plain())
            if status:
                message = f"stopped by {signal_name(status - 128)}; {self.same_command} continues the sweep"
                report(RunResult.preempted(status - 128, message))
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
            results_table.print_runs(name, progress, results_table.MAX_PRINTED + 3, self._mode, rest)
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
            best = results_table.best_run(progress, self._mode) if self.rules.has_best else None
            say_fields(results_table.closing_fields(self.folder, progress, self.files.wall_seconds, best))

    def plain(self) -> dict[str, Any]:
        """Return what the sweep has come to, in plain types: `hydrant status --json --all` has each run."""
        runs = plan.sweep_progress(self.folder)
        troubles = [run for run in runs if run.message and run.state != RunStatus.QUEUED]
        of_jobs = {"best": results_table.best_run(runs, self._mode), "ended_by": self.answer.ended_by}
        return {
            "result": self.answer.result,
            "folder": relative(self.folder),
            "states": dict(Counter(str(run.state) for run in runs)),
            **(of_jobs if self.rules.has_best else {}),
            "errors": [
                {"run": run.run, "message": run.message} for run in troubles[: results_table.MAX_PRINTED]
            ],
            "wall_seconds": self.files.total[0],
            "processor_seconds": self.files.total[1],
        }


def _record_failure(job: SweepJob, result: RunResult) -> None:
    """Write the failure of a job that did not write it, because it died or failed before it had its folder."""
    run = RunFolder(job.folder)
    if run.status == RunStatus.FAILED and run.summary_time != job.earlier:
        return
    # Not if another start of this sweep has begun to train it.
    with plan.print_write_errors(job.folder), suppress(FolderInUse), exclusive(job.folder):
        if RunFolder(job.folder).newest_checkpoint is None:  # else the config of its run stays
            write_records(job.job)
        mark(job.folder, RunStatus.FAILED, {"type": JobFailed.__name__, "message": result.message})


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
