"""The files of a sweep: its plan, with the jobs and the seconds of all starts, and its table of results."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hydrant.files.atomic_write import locked
from hydrant.files.redaction import redacted
from hydrant.runs.folder import SWEEP_LOCK, SWEEP_PLAN, SWEEP_TABLE, RunFolder, runs_of_sweep
from hydrant.runs.lease import this_machine
from hydrant.runs.lock import note_no_lock
from hydrant.runs.outcome import RunResult
from hydrant.sweeps.plan import Plan, PlannedJob, usable_plan, write_plan
from hydrant.sweeps.results_table import write_sweep_csv
from hydrant.terminal.console import notice


class SweepFiles:
    """What one `--multirun` command writes into the folder of its sweep."""

    def __init__(self) -> None:
        self._began = time.time()  # of the machine's clock, which may be set meanwhile
        self._began_monotonic = time.monotonic()
        self.jobs: dict[Path, PlannedJob] = {}  # by folder, in their order
        self.keeps_plan = False  # the jobs and commands in sweep.json: others are at work in the folder
        self.adds_seeds = False  # to a sweep whose results could be seen
        self._processor_seconds = 0.0  # of the processes of jobs
        # Wall and processor seconds: of all starts, and what is in it of this one.
        self.total = self._counted = 0.0, 0.0

    def count(self, result: RunResult) -> None:
        """Add the processor time of a process that has ended."""
        self._processor_seconds += result.processor_seconds

    @property
    def wall_seconds(self) -> float:
        """Those of this start so far."""
        return time.monotonic() - self._began_monotonic

    @property
    def processor_seconds(self) -> float:
        """Those of this process, and of the processes of jobs that were not killed, also on other machines."""
        return self._processor_seconds + time.process_time()

    def runs(self, folder: Path) -> list[RunFolder]:
        """Return the runs of the jobs in their order, then the other runs in the folder."""
        runs = [RunFolder(job.folder, job.overrides, job.refused) for job in self.jobs.values()]
        return runs + runs_of_sweep(folder, without=self.jobs)

    def write_plan(self, folder: Path) -> None:
        """Write what the sweep plans, with what other commands at work have planned, and what all starts have used."""
        with print_write_errors(folder / SWEEP_PLAN), ExitStack() as stack:
            try:
                stack.enter_context(locked(folder / SWEEP_LOCK))
            except OSError as error:
                consequence = "if the sweep is started twice at once, some seconds may not be counted"
                note_no_lock(folder / SWEEP_LOCK, error.strerror or str(error), consequence)
            file, used = usable_plan(folder)[0], (self.wall_seconds, self.processor_seconds)
            wall, cpu = self.total = (  # of this start too, if somebody has damaged the file
                max(file.wall_seconds, self.total[0]) + used[0] - self._counted[0],
                max(file.processor_seconds, self.total[1]) + used[1] - self._counted[1],
            )
            self._counted = used
            others, commands = (file.jobs, file.commands) if self.keeps_plan else ([], [])
            self.keeps_plan = True  # from now on, what others add is of commands at work
            jobs = {Path(os.path.realpath(job.folder)): job for job in others} | self.jobs
            num, self.adds_seeds = file.num_extensions + self.adds_seeds, False  # it counts once
            write_plan(folder, Plan(self._began, [*jobs.values()], commands, "", wall, cpu, num))

    def refresh(self, folder: Path) -> None:
        self.write_plan(folder)
        self.write_table(folder, self.runs(folder))

    def write_table(self, folder: Path, runs: Sequence[RunFolder]) -> None:
        with print_write_errors(folder / SWEEP_TABLE):
            write_sweep_csv(folder, runs)


def planned(folder: Path, overrides: Sequence[str]) -> PlannedJob:
    earlier = RunFolder(folder).summary_time
    return PlannedJob(
        folder, redacted(list(overrides)), earlier=earlier, pid=os.getpid(), machine=this_machine()
    )


@contextmanager
def print_write_errors(path: Path) -> Generator[None]:
    """Print an OSError instead of raising it, so that the jobs continue."""
    try:
        yield
    except OSError as error:
        notice(f"{path} cannot be written: {error.strerror or error}")
