"""The jobs of a sweep, each in a process of its own, and the table of what came of them."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from pathlib import Path

from hydrant.admission import is_finished
from hydrant.errors import ConfigError, JobFailed
from hydrant.executors.base import Executor, Work, result_in
from hydrant.identity import write_records
from hydrant.isolation import Stopped, forwarding
from hydrant.job import Job, Result, relative, remove_if_empty, report, say
from hydrant.live import drawn, is_terminal, table
from hydrant.redaction import redacted
from hydrant.runs import (
    Plan,
    Planned,
    RunFolder,
    choices_in,
    mark_failed,
    read_run,
    runs_of_sweep,
    write_plan,
)
from hydrant.standing import standings
from hydrant.sweep_table import print_table, write_sweep_csv


class Sweep:
    """What one `--multirun` does in this process."""

    def __init__(self) -> None:
        self._began = time.time()
        self._jobs: dict[Path, Planned] = {}  # by folder, in their order
        self._claims: dict[str, None] = {}  # of the jobs, each once
        self._gathered: list[Work] | None = None
        self._has_table = False
        self.has_run = False
        self.may_fail = False  # jobs of a search, which goes on without them
        self.outcome: list[str] = []  # lines to end with

    @contextmanager
    def going(self, folder: Path, jobs: Mapping[Path, Sequence[str]]) -> Generator[None]:
        """While it lasts, jobs run, those in `jobs` (folder: overrides) and others that come; a terminal shows them.

        Whoever calls this holds the folder of the sweep.
        """
        self._jobs |= {path: Planned(path, redacted(list(own))) for path, own in jobs.items()}
        self._write_plan(folder)
        self._has_table = is_terminal()
        with drawn(partial(_table, folder)) if self._has_table else nullcontext():
            yield

    def run(self, job: Job, number: int, environment: Mapping[str, str]) -> float | None:
        """Run one job, or note it for `run_all`; its value, for sweepers that search.

        Raises:
            JobFailed: after saying why.
            Stopped: a signal arrived meanwhile; the job has saved its state, or is done.
        """
        if (path := job.folder.resolve()) not in self._jobs:
            self._jobs[path] = Planned(path, redacted(list(job.overrides)))
            self._write_plan(job.sweep_folder or path.parent)
        if job.config["claim"] is not None:
            self._claims[job.config["claim"]] = None
        work = Work(number, job, environment, self._has_table)
        if self._gathered is not None:
            self._gathered.append(work)
            return None
        self.has_run, began = True, time.time()
        if (before := _finished_before(work)) is not None:
            return before.value
        work.announce()
        answer = work.call(is_silent=self._has_table)
        result, signum = answer.result, answer.signum
        self.settle(work, result, began)
        if signum is not None or result.exit_status > 128:
            raise Stopped(max(result.exit_status, 128 + (signum or 0)))
        if result.exit_status:
            raise JobFailed(f"{job.folder.name}: {result.message}")
        return result.value

    @contextmanager
    def gathering(self) -> Generator[list[Work]]:
        """While it lasts, `run` only notes the jobs."""
        self._gathered = works = list[Work]()
        try:
            yield works
        finally:
            self._gathered = None

    def run_all(self, works: Sequence[Work], executor: Executor) -> dict[int, Result]:
        """Run jobs side by side; their results by number.

        Raises:
            Stopped: a signal arrived meanwhile, here or at a job; what ran has saved its state, or is done.
        """
        began = time.time()
        done = {work.number: result for work in works if (result := _finished_before(work)) is not None}
        rest = [work for work in works if work.number not in done]
        try:
            with forwarding() as signals:
                for work, result in executor.run(rest, lambda: signals.signum) if rest else ():
                    self.has_run = True
                    done[work.number] = result
                    self.settle(work, result, began)
                    if not (result.exit_status or self._has_table):
                        say(f"job {work.number}: finished")
        finally:
            remove_if_empty([work.job.folder for work in works])
        if signals.signum is not None:
            raise Stopped(128 + signals.signum)
        if stopped := [result.exit_status for result in done.values() if result.exit_status > 128]:
            raise Stopped(max(stopped))
        return done

    def settle(self, work: Work, result: Result, began: float) -> None:
        """Note and tell what came of a job."""
        job = work.job
        if result.exit_status == ConfigError.exit_status:
            remove_if_empty([job.folder])
            path = job.folder.resolve()
            self._jobs[path] = replace(self._jobs[path], refused=result.message)
            self._write_plan(job.sweep_folder or path.parent)
        elif 0 < result.exit_status < 128:
            _note_failed(job, result, began)
        if job.sweep_folder is not None:
            self._write_table(job.sweep_folder, self._runs(job.sweep_folder))
        report(result, f"job {work.number}: ")

    def close(self, folder: Path) -> bool:
        """Write and print the table of a sweep; whether any job failed since this began."""
        runs = self._runs(folder)
        if not any(run.has_begun for run in runs):
            return False
        self._write_table(folder, runs)
        print_table(folder, runs, list(self._claims))
        for line in self.outcome:
            say(line)
        is_refused = any(job.refused for job in self._jobs.values())
        is_any_failed = any(run.status == "failed" and run.changed >= self._began for run in runs)
        return not self.may_fail and (is_refused or is_any_failed)

    def _runs(self, folder: Path) -> list[RunFolder]:
        """Every run of the sweep, in the order of the jobs; those of an earlier, larger grid follow."""
        own = [_read(job) for job in self._jobs.values()]
        return own + [run for run in runs_of_sweep(folder) if run.path.resolve() not in self._jobs]

    def _write_plan(self, folder: Path) -> None:
        with _told_of(folder / "sweep.json"):
            write_plan(folder, Plan(self._began, list(self._jobs.values())))

    def _write_table(self, folder: Path, runs: Sequence[RunFolder]) -> None:
        with _told_of(folder / "sweep.csv"):
            write_sweep_csv(folder, runs)


current: ContextVar[Sweep] = ContextVar("sweep")
"""The sweep that this process is busy with: Hydra builds its sweepers itself."""


def _note_failed(job: Job, result: Result, began: float) -> None:
    """Write what the job could not write itself, because it died or failed before it had its folder."""
    run = read_run(job.folder)
    if run.status == "failed" and run.changed >= began:
        return
    with _told_of(job.folder):
        write_records(job)
        mark_failed(job.folder, result.message)


@contextmanager
def _told_of(path: Path) -> Generator[None]:
    """What cannot be written is told, and ends nothing."""
    try:
        yield
    except OSError as error:
        print(f"{path} cannot be written: {error.strerror or error}", file=sys.stderr)


def _read(job: Planned) -> RunFolder:
    choices = choices_in(job.overrides)
    if job.refused:  # whatever its folder holds from before, this job did not run
        return RunFolder(job.folder, choices, {"status": "refused", "error": {"message": job.refused}})
    return RunFolder(job.folder, choices, read_run(job.folder).summary)


def _finished_before(work: Work) -> Result | None:
    """What a job gave that need not run again."""
    job = work.job
    if not is_finished(job.config, job.folder):
        return None
    result = result_in(job, "")
    if not work.in_table:
        say(f"job {work.number}: already finished: {relative(job.folder)}")
    return result


def _table(folder: Path, width: int, height: int) -> list[str]:
    return table(relative(folder.resolve()), standings(folder), width, height)
