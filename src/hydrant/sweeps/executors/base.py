"""What the executors of a sweep run: a unit, which is a command and the folders that it fills."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

from hydrant.errors import FolderInUse
from hydrant.extensions.stacked.plan import numbers_text
from hydrant.installation import entry_points
from hydrant.runs.folder import RunFolder, RunStatus
from hydrant.runs.job import Job, RunResult
from hydrant.runs.lock import is_held, wait_until_free
from hydrant.safety.targets import preload_paths
from hydrant.safety.trust import import_from_working_folder
from hydrant.sweeps.fork_server.call import ProcessDied, call_isolated
from hydrant.terminal.console import say

_PATIENCE_SECONDS = 30.0
"""The seconds that a stack waits for lanes that another process still trains. Then it begins without them."""

StopSignal: TypeAlias = Callable[[], int | None]
"""Returns the signal that stops the sweep; None while none has arrived."""

UnitsEnded: TypeAlias = "Generator[tuple[Unit, Ended]]"


class Executor(Protocol):
    """Runs the units of a sweep.

    `is_remote`: they may run on other machines, so preflight does not check what this one has. `num_processes`: how
    many run at once on this machine, among which `lanes: auto` divides the jobs; None: one for each GPU, or for each
    core if there are none.
    """

    is_remote: bool

    @property
    def num_processes(self) -> int | None: ...

    def prepare(self) -> None:
        """Prepare to run units, before Hydra composes jobs and before the server starts that forks their processes.

        Raises:
            ConfigError: units cannot run.
        """
        ...

    def run(self, units: Sequence[Unit], stop_signal: StopSignal) -> UnitsEnded:
        """Run units and yield each when it ends.

        Once `stop_signal()` returns a signal, running units save and stop, and waiting ones are left out. Closing the
        generator stops the units or waits for them.
        """
        ...


@dataclass(frozen=True)
class SweepJob:
    """A job of a sweep, composed and checked."""

    job: Job
    words: Sequence[str] = ()  # all overrides
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    """`hydra.job.env_set`, added for the job to the environment of this process."""
    number: int = 0  # in the sweep
    in_table: bool = False  # a table shows the progress, so nothing is printed
    earlier: float = 0.0  # when its summary was written before this start, in unix seconds; 0: never

    @cached_property
    def folder(self) -> Path:
        return self.job.folder.resolve()

    @property
    def config(self) -> Mapping[str, Any]:
        return self.job.config

    def recorded(self, otherwise: RunResult, *, also_earlier: bool = False) -> RunResult:
        """Return the result that the run folder records; `otherwise` if this start has recorded no end of the run.

        `also_earlier`: that an earlier start was stopped counts too, because a queue may not have begun this one.
        """
        run = RunFolder(self.folder)
        is_new = run.summary_time != self.earlier  # not later: the clock may be set back meanwhile
        if run.status in (RunStatus.FINISHED, RunStatus.PRUNED, RunStatus.STOPPED):
            return RunResult.finished((run.summary.get("best") or {}).get("value"))
        if run.status == RunStatus.FAILED and is_new:
            return RunResult.failed(run.error)
        if run.status == RunStatus.PREEMPTED and (is_new or also_earlier):
            message = f"stopped by a signal; {self.job.same_command()} continues it"
            return RunResult.stopped(signal.SIGTERM, message)
        return otherwise


class Ended(NamedTuple):
    """How a unit ended."""

    results: Sequence[RunResult]  # of its jobs, in their order
    processor_seconds: float = 0.0  # of its process and the children of that
    signum: int | None = None  # the last signal that was forwarded to it

    @property
    def is_stopped(self) -> bool:
        return any(result.exit_status > 128 for result in self.results)


@dataclass(frozen=True)
class Unit:
    """A command and the folders that it fills: a job, or several that train together as the lanes of a stack."""

    jobs: Sequence[SweepJob]

    @property
    def has_begun(self) -> bool:
        """Whether a run has begun in one of the folders."""
        return any(RunFolder(job.folder).has_begun for job in self.jobs)

    @property
    def num_ranks(self) -> int:
        """How many ranks the command starts."""
        return self.jobs[0].config["parallel"]["num_processes"]

    def without(self, folders: Collection[Path]) -> Unit:
        """Return the unit without the jobs in these folders."""
        return Unit([job for job in self.jobs if job.folder not in folders])

    def announce(self, where: str = "") -> None:
        """Print that the unit starts."""
        first, *others = self.jobs
        if first.in_table:
            return
        if others:
            numbers = numbers_text([job.number for job in self.jobs])
            say(f"jobs {numbers}: a stack of {len(self.jobs)} lanes{where}")
            return
        waits = is_held(first.folder)
        wait = "; waiting for another process, which trains in this folder" if waits else ""
        say(f"job {first.number}: {first.folder.name}{where}{wait}")

    def run(self, environment: Mapping[str, str] | None = None, *, is_silent: bool = False) -> Ended:
        """Run the command in a fresh process.

        Args:
            environment: variables to add to those of the jobs.
            is_silent: discard its stdout, because others run at the same time.
        """
        first, jobs = self.jobs[0], [job.job for job in self.jobs]
        variables = {**first.environment, **(environment or {})}
        call = call_isolated(
            execute_jobs, (jobs, is_silent or len(jobs) > 1), paths_to_preload([first.config]), variables
        )
        if not isinstance(call.result, ProcessDied):
            return Ended(*call.result, call.signum)
        if call.signum is None:
            died = RunResult.failed(str(call.result))
        else:
            message = f"stopped by a signal before it began; {first.job.same_command()} starts it again"
            died = RunResult.stopped(call.signum, message)
        return Ended([job.recorded(died) for job in self.jobs], signum=call.signum)

    def lost(self, message: str) -> Ended:
        """Return how the unit ended by what its folders record, because its queue has ended or lost it."""
        failed = RunResult.failed(message)
        return Ended([job.recorded(failed, also_earlier=True) for job in self.jobs])


def paths_to_preload(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the paths of what jobs with these configs import.

    `hydrant.cli` is among them because every forked process imports the main script (train.py), which imports it.
    """
    return [
        "hydrant.cli",
        __name__,  # of `execute_jobs`
        "hydrant.extensions.stacked.runs",  # and `hydrant.runs.execute`
        *(point.value.replace(":", ".") for point in entry_points("hydrant.listeners").values()),
        *preload_paths(configs),
    ]


def execute_jobs(jobs: Sequence[Job], is_silent: bool) -> tuple[list[RunResult], float]:
    """Execute jobs in this process, as soon as no other process trains them.

    Returns:
        their results, and the processor seconds of this process and of its children that have ended.
    """
    from hydrant.extensions.stacked.runs import execute_stack  # imports torch

    if is_silent:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if any(job.config["allow_targets"] for job in jobs):
        import_from_working_folder()  # submitit's processes do not
    results, waiting = dict[Path, RunResult](), list(jobs)
    while waiting:
        # The same job of another start of this sweep may still save its state, or run under SLURM.
        folders = wait_until_free([job.folder for job in waiting], _PATIENCE_SECONDS)
        free = [job for job in waiting if job.folder in folders]
        results |= dict(zip((job.folder for job in free), execute_stack(free), strict=True))
        for job in free:  # in the trial of two of them, no value showed that
            if results[job.folder].error_type == "CannotStack":
                results[job.folder] = execute_stack([job])[0]
        # Another start was faster, or another machine trains it.
        in_use = [job for job in free if results[job.folder].error_type == FolderInUse.__name__]
        waiting = [job for job in waiting if job in in_use or job not in free]
        if any(result.status == RunStatus.PREEMPTED for result in results.values()):
            break
    for job in waiting:  # a signal stopped those that were trained before
        stopped = next(result for result in results.values() if result.status == RunStatus.PREEMPTED)
        message = f"stopped by a signal before it began; {job.same_command()} starts it"
        results.setdefault(job.folder, replace(stopped, message=message))
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return [results[job.folder] for job in jobs], sum(usage.ru_utime + usage.ru_stime for usage in used)
