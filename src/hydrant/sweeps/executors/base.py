"""The job of a sweep, and the protocol of the executors that run it."""

from __future__ import annotations

import os
import resource
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from hydrant.errors import FolderInUse
from hydrant.runs.folder import RunFolder, RunStatus
from hydrant.runs.job import Job, RunResult
from hydrant.runs.lock import is_held, wait_until_free
from hydrant.safety.targets import preload_paths
from hydrant.safety.trust import import_from_working_folder
from hydrant.sweeps.fork_server.call import CallResult, ProcessDied, call_isolated
from hydrant.sweeps.stack_plan import numbers_text
from hydrant.terminal.console import say

_PATIENCE_SECONDS = 30.0
"""The seconds that a stack waits for lanes that another process still trains. Then it begins without them."""

StopSignal: TypeAlias = Callable[[], int | None]
"""Returns the signal that stops the sweep; None while none has arrived."""

JobResults: TypeAlias = "Generator[tuple[SweepJob, RunResult]]"


class Executor(Protocol):
    """Runs the jobs of a sweep.

    `is_remote`: jobs may run on other machines, so preflight does not check what this one has. `num_processes`: how
    many run at once on this machine, among which `lanes: auto` divides the jobs; None: one for each GPU, or for each
    core if there are none.
    """

    is_remote: bool

    @property
    def num_processes(self) -> int | None: ...

    def prepare(self) -> None:
        """Prepare to run jobs, before Hydra composes them and before the server starts that forks their processes.

        Raises:
            ConfigError: jobs cannot run.
        """
        ...

    def run(self, sweep_jobs: Sequence[SweepJob], stop_signal: StopSignal) -> JobResults:
        """Run the jobs and yield each with its result when it ends.

        Once `stop_signal()` returns a signal, running jobs save and stop, and waiting jobs are left out. Closing the
        generator stops the jobs or waits for them.
        """
        ...


@dataclass(frozen=True)
class SweepJob:
    """A job of a sweep. It runs in a process of its own, or with others as a stack."""

    number: int  # in the sweep
    job: Job
    # `hydra.job.env_set`, added for the job to the environment of this process.
    environment: Mapping[str, str]
    in_table: bool = False  # the live table shows the progress, so nothing is printed
    other_lanes: Sequence[SweepJob] = ()  # the jobs that train in its process, as lanes of one stack

    @property
    def lanes(self) -> Sequence[SweepJob]:
        """All jobs that train in this job's process, which is the first of them."""
        return (self, *self.other_lanes)

    @property
    def has_begun(self) -> bool:
        """Whether a run has begun in the folder of this job or of another lane."""
        return any(RunFolder(lane.job.folder).has_begun for lane in self.lanes)

    def announce(self, where: str = "") -> None:
        """Print that the job starts, and its other lanes."""
        if self.in_table:
            return
        if self.other_lanes:
            numbers = numbers_text([job.number for job in self.lanes])
            say(f"jobs {numbers}: a stack of {len(self.lanes)} lanes{where}")
            return
        waits = is_held(self.job.folder)
        wait = "; waiting for another process, which trains in this folder" if waits else ""
        say(f"job {self.number}: {self.job.folder.name}{where}{wait}")

    def run(
        self, environment: Mapping[str, str] = MappingProxyType({}), *, is_silent: bool = False
    ) -> CallResult[RunResult]:
        """Run the job in a fresh process and return its result and the last signal that was forwarded to it.

        `lane_results` returns the results of its other lanes.

        Args:
            environment: variables to add to `self.environment`.
            is_silent: discard the job's stdout, because other jobs run at the same time.
        """
        paths, variables = paths_to_preload([self.job.config]), {**self.environment, **environment}
        jobs = [lane.job for lane in self.lanes]
        call = call_isolated(execute_jobs, (jobs, is_silent or len(jobs) > 1), paths, variables)
        result, signum = call.result, call.signum
        if isinstance(result, ProcessDied):
            message = f"stopped by a signal before it began; {self.job.same_command()} starts it again"
            result = RunResult.failed(str(result)) if signum is None else RunResult.stopped(signum, message)
        return CallResult(result, signum)


def paths_to_preload(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the paths of what jobs with these configs import.

    `hydrant.cli` is among them because every forked process imports the main script (train.py), which imports it.
    """
    return [
        "hydrant.cli",
        __name__,  # of `execute_job`
        "hydrant.runs.stack",  # and `hydrant.runs.execute`
        "hydrant.sweeps.fork_server.warm_matplotlib",
        *preload_paths(configs),
    ]


def result_from_folder(job: Job, message: str) -> RunResult:
    """Return the result that a job's run folder records.

    Args:
        message: why the job failed, if the folder records no end of the run.
    """
    run = RunFolder(job.folder)
    if run.status in (RunStatus.FINISHED, RunStatus.PRUNED, RunStatus.STOPPED):
        return RunResult.finished((run.summary.get("best") or {}).get("value"))
    if run.status == RunStatus.PREEMPTED:
        return RunResult.stopped(signal.SIGTERM, f"stopped by a signal; {job.same_command()} continues it")
    return RunResult.failed(message)


def lane_results(
    sweep_job: SweepJob, result: RunResult, earlier: Callable[[Job], float]
) -> Iterator[tuple[SweepJob, RunResult]]:
    """Yield a job that has ended and the other lanes of its stack, each with its result.

    Args:
        result: of the job. If its process died, it has no results of lanes: those are read from their folders.
        earlier: returns when the summary of a job was written before the sweep; what it recorded then does not count.
    """
    if not sweep_job.other_lanes:
        yield sweep_job, result
        return
    for lane in sweep_job.lanes:
        known = result.lanes.get(_key(lane.job))
        yield replace(lane, other_lanes=()), known or _recorded(lane.job, result, earlier(lane.job))


def _recorded(job: Job, otherwise: RunResult, earlier: float) -> RunResult:
    """Return the result that a run folder records; `otherwise` if it records no end of the run."""
    run = RunFolder(job.folder)
    is_old = run.summary_time == earlier  # the machine's clock does not tell: it may be set back meanwhile
    if run.status == RunStatus.FAILED and not is_old:
        return RunResult.failed(run.error)
    recorded = result_from_folder(job, "its stack ended without it")
    if recorded.status != RunStatus.FAILED and not (run.status == RunStatus.PREEMPTED and is_old):
        return recorded
    return recorded if otherwise.status == RunStatus.FINISHED else otherwise


def _key(job: Job) -> str:
    return str(job.folder.resolve())


def execute_jobs(jobs: Sequence[Job], is_silent: bool) -> RunResult:
    """Execute jobs in this process, as soon as no other process trains them; return the result of the first.

    Its `lanes` are the results of all, if there are several.
    """
    from hydrant.runs.stack import execute_stack  # imports torch

    if is_silent:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if any(job.config["allow_targets"] for job in jobs):
        import_from_working_folder()  # submitit's processes do not
    results, waiting = dict[str, RunResult](), list(jobs)
    while waiting:
        # The same job of another start of this sweep may still save its state, or run under SLURM.
        folders = wait_until_free([job.folder for job in waiting], _PATIENCE_SECONDS)
        free = [job for job in waiting if job.folder in folders]
        results |= dict(zip(map(_key, free), execute_stack(free), strict=True))
        for job in free:  # in the trial of two of them, no value showed that
            if results[_key(job)].error_type == "CannotStack":
                results[_key(job)] = execute_stack([job])[0]
        # Another start was faster, or another machine trains it.
        ended = [job for job in free if results[_key(job)].error_type != FolderInUse.__name__]
        waiting = [job for job in waiting if job not in ended]
        if any(result.status == RunStatus.PREEMPTED for result in results.values()):
            break
    for job in waiting:  # a signal stopped those that were trained before
        stopped = next(result for result in results.values() if result.status == RunStatus.PREEMPTED)
        message = f"stopped by a signal before it began; {job.same_command()} starts it"
        results.setdefault(_key(job), replace(stopped, message=message))
    first = replace(results[_key(jobs[0])], processor_seconds=_processor_seconds())
    return first if len(jobs) == 1 else replace(first, lanes=results)


def _processor_seconds() -> float:
    """Return the processor time of this process, and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
