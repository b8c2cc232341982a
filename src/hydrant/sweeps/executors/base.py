"""The job of a sweep, and the protocol of the executors that run it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from hydrant.config.targets import preload_modules
from hydrant.errors import FolderInUse
from hydrant.runs.console import say
from hydrant.runs.folder import RunStatus, read_run
from hydrant.runs.job import Job
from hydrant.runs.lock import is_held, wait_until_free
from hydrant.runs.outcome import RunResult
from hydrant.sweeps.fork_server.call import CallResult, ProcessDied, call_isolated

StopSignal: TypeAlias = Callable[[], int | None]
"""Returns the signal that stops the sweep; None while none has arrived."""

JobResults: TypeAlias = "Generator[tuple[SweepJob, RunResult]]"


class Executor(Protocol):
    """Runs the jobs of a sweep. If `is_remote`, they may run on other machines, where preflight cannot check them."""

    is_remote: bool

    def prepare(self) -> None:
        """Prepare to run jobs, before Hydra composes them.

        Raises:
            ConfigError: jobs cannot run.
        """
        ...

    def run(self, sweep_jobs: Sequence[SweepJob], stop_signal: StopSignal) -> JobResults:
        """Run the jobs and yield each with its result when it ends.

        Once `stop_signal()` returns a signal, running jobs save and stop, and waiting jobs are left out. If an error
        closes the generator before its end, no job goes on unseen: jobs end, or this process waits for them.
        """
        ...


@dataclass(frozen=True)
class SweepJob:
    """A job of a sweep, which runs in a process of its own."""

    number: int  # in the sweep
    job: Job
    environment: Mapping[
        str, str
    ]  # `hydra.job.env_set`, added for the job to the environment of this process
    in_table: bool = False  # the live table shows its progress, so nothing is printed about it

    def announce(self, where: str = "") -> None:
        """Print that the job starts."""
        if self.in_table:
            return
        must_wait = is_held(self.job.folder)
        wait = "; waiting for another process, which trains in this folder" if must_wait else ""
        say(f"job {self.number}: {self.job.folder.name}{where}{wait}")

    def run(
        self, environment: Mapping[str, str] = MappingProxyType({}), *, is_silent: bool = False
    ) -> CallResult[RunResult]:
        """Run the job in a fresh process and return its result and the last signal that was forwarded to it.

        Args:
            environment: variables to add to `self.environment`.
            is_silent: discard the job's stdout, because other jobs run at the same time.
        """
        modules, variables = modules_to_preload([self.job.config]), {**self.environment, **environment}
        call = call_isolated(execute_job, (self.job, is_silent), modules, variables)
        result, signum = call.result, call.signum
        if isinstance(result, ProcessDied):
            message = f"stopped by a signal before it began; {self.job.same_command()} starts it again"
            result = RunResult.failed(str(result)) if signum is None else RunResult.stopped(signum, message)
        return CallResult(result, signum)


def modules_to_preload(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the modules that jobs with these configs import.

    `hydrant.cli` is among them because every forked process imports the main script (train.py), which imports it.
    """
    return [
        "hydrant.cli",
        __name__,  # of `execute_job`
        "hydrant.runs.execute",
        "hydrant.sweeps.fork_server.warm_matplotlib",
        *preload_modules(configs),
    ]


def result_from_folder(job: Job, message: str) -> RunResult:
    """Return the result that a job's run folder records.

    Args:
        message: why the job failed, if the folder records no end of the run.
    """
    run = read_run(job.folder)
    if run.status in (RunStatus.FINISHED, RunStatus.PRUNED):
        return RunResult.finished((run.summary.get("best") or {}).get("value"))
    if run.status == RunStatus.PREEMPTED:
        return RunResult.stopped(signal.SIGTERM, f"stopped by a signal; {job.same_command()} continues it")
    return RunResult.failed(message)


def execute_job(job: Job, is_silent: bool) -> RunResult:
    """Execute a job in this process, as soon as no other process trains it."""
    from hydrant.runs.execute import execute  # imports torch

    if is_silent:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    while True:
        # The same job of another start of this sweep may still save its state, or run under SLURM.
        wait_until_free(job.folder)
        result = execute(job)
        if result.error_type != FolderInUse.__name__:
            return result
        # Another start was faster, or another machine trains it.
