"""What the executors of a sweep run: a unit, which is a command and the folders that it fills."""

import os
import resource
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

from hydrant.config.check import built, is_basic_launcher
from hydrant.config.instantiate import as_config_error
from hydrant.errors import ConfigError, FolderInUse, HydrantError
from hydrant.installation import entry_points
from hydrant.runs.folder import RunFolder, RunStatus
from hydrant.runs.job import Job, RunResult
from hydrant.runs.lock import is_held, wait_until_free
from hydrant.safety.targets import preload_paths
from hydrant.safety.trust import import_from_working_folder
from hydrant.sweeps.fork_server.call import ProcessDied, call_isolated
from hydrant.sweeps.preflight import find_config_errors
from hydrant.terminal.console import say, show_activity

_PATIENCE_SECONDS = 30.0
"""The seconds that a unit waits for folders which another process still fills. Then it begins without them."""

StopSignal: TypeAlias = Callable[[], int | None]
"""Returns the signal that stops the sweep; None while none has arrived."""

UnitsEnded: TypeAlias = "Generator[tuple[Unit, Ended]]"


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
            return RunResult.preempted(signal.SIGTERM, message)
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
    """A command and the folders that it fills, those of its jobs. It runs each job by itself."""

    jobs: Sequence[SweepJob]

    preload: ClassVar[Sequence[str]] = ("hydrant.runs.execute",)
    """The modules that `execute` imports."""

    @staticmethod
    def execute(jobs: Sequence[Job]) -> list[RunResult]:
        """Execute jobs in this process, in folders that no other one fills, and return their results."""
        from hydrant.runs.execute import execute  # imports torch

        return [execute(job) for job in jobs]

    @property
    def has_begun(self) -> bool:
        """Whether a run has begun in one of the folders."""
        return any(RunFolder(job.folder).has_begun for job in self.jobs)

    @property
    def num_ranks(self) -> int:
        """How many ranks the command starts."""
        return self.jobs[0].config["parallel"]["num_processes"]

    def without(self, folders: Collection[Path]) -> Self:
        """Return the unit without the jobs in these folders."""
        return replace(self, jobs=[job for job in self.jobs if job.folder not in folders])

    def announce(self, where: str = "") -> None:
        """Print that the unit starts, and where, such as `slurm job 7`."""
        place = where and f" ({where})"
        for job in self.jobs:
            if not job.in_table:
                wait = "; waiting for another process, which trains it" if is_held(job.folder) else ""
                say(f"job {job.number}: {job.folder.name}{place}{wait}")

    def run(self, environment: Mapping[str, str] | None = None, *, is_silent: bool = False) -> Ended:
        """Run the command in a fresh process.

        Args:
            environment: variables to add to those of the jobs.
            is_silent: discard its stdout, because others run at the same time.
        """
        first, jobs = self.jobs[0], [job.job for job in self.jobs]
        variables = {**first.environment, **(environment or {})}
        preload = self.paths_to_preload([first.config])
        arguments = (self.execute, jobs, is_silent or len(jobs) > 1)
        call = call_isolated(execute_jobs, arguments, preload, variables)
        if not isinstance(call.result, ProcessDied):
            return Ended(*call.result, call.signum)
        if call.signum is None:
            died = RunResult.failed(str(call.result))
        else:
            message = f"stopped by a signal before it began; {first.job.same_command()} starts it again"
            died = RunResult.preempted(call.signum, message)
        return Ended([job.recorded(died) for job in self.jobs], signum=call.signum)

    def lost(self, message: str) -> Ended:
        """Return how the unit ended by what its folders record, because its queue has ended or lost it."""
        failed = RunResult.failed(message)
        return Ended([job.recorded(failed, also_earlier=True) for job in self.jobs])

    @classmethod
    def paths_to_preload(cls, configs: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return the paths of what units of jobs with these configs import.

        `hydrant.cli` is among them because every forked process imports the main script (train.py), which imports it.
        """
        listeners = (point.value.replace(":", ".") for point in entry_points("hydrant.listeners").values())
        return ["hydrant.cli", __name__, *cls.preload, *listeners, *preload_paths(configs)]


class CannotStop(HydrantError):
    """A process or a queue cannot be asked to stop from here."""


class Executor(ABC):
    """Where units of a sweep run: `hydra.launcher` names a class that extends this one.

    Attributes:
        is_remote: they may run on other machines, so preflight does not check what this one has.
        num_jobs: how many units run at once; None: as many as there is room for.
        max_jobs: the most jobs of a unit; None: as many as fit.
        unit: the class of the units.
    """

    is_remote: bool = False
    num_jobs: int | None = 1
    max_jobs: int | None = 1
    unit: type[Unit] = Unit

    @property
    def queues(self) -> list[str]:
        """The path of the class whose `cancel` ends what goes on after the command has ended; empty if nothing does."""
        cancels = type(self).cancel is not Executor.cancel
        return [f"{type(self).__module__}.{type(self).__qualname__}"] if cancels else []

    @staticmethod
    def cancel(folder: Path) -> list[str]:
        """Cancel what a queue has of a sweep, or of one run of it; return what that was, such as "job 7".

        A class has this method if its units go on after the command has ended.
        """
        del folder
        return []

    def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Prepare to run units, before Hydra composes jobs and before the server starts that forks their processes.

        Raises:
            ConfigError: units cannot run.
        """

    def find_errors(self, jobs: Sequence[SweepJob]) -> Sequence[ConfigError | None]:
        """Return why each job cannot run on this machine; None if it can.

        Raises:
            Stopped: a signal arrived.
        """
        show_activity(f"checking {len(jobs):,} jobs" if len(jobs) > 1 else "checking the job")
        return self.check([job.config for job in jobs])

    def check(self, configs: Sequence[Mapping[str, Any]]) -> list[ConfigError | None]:
        """Return why each checked config cannot run on this machine; None if it can."""
        return find_config_errors(configs, self.unit.paths_to_preload(configs))

    def units(self, jobs: Sequence[SweepJob]) -> list[Unit]:
        """Group jobs into units: by default each alone. Prints what a user should know about the groups."""
        return [self.unit([job]) for job in jobs]

    @abstractmethod
    def run(self, units: Sequence[Unit], stop_signal: StopSignal) -> UnitsEnded:
        """Run units and yield each when it ends.

        Once `stop_signal()` returns a signal, running units save and stop, and waiting ones are left out. Closing the
        generator stops the units or waits for them.
        """


class Sequential(Executor):
    """Runs one job after another and lets them print: the executor for Hydra's basic launcher."""

    def run(self, units: Sequence[Unit], stop_signal: StopSignal) -> UnitsEnded:
        for unit in units:
            if stop_signal() is not None:
                return
            unit.announce()
            ended = unit.run(is_silent=unit.jobs[0].in_table)
            yield unit, ended
            if ended.is_stopped:
                return


def executor_of(node: Mapping[str, Any], key: str = "hydra.launcher") -> Executor:
    """Return where the units of a sweep run, ready to run them.

    Args:
        node: a checked `hydra.launcher`, or one in it.
        key: where the node is.

    Raises:
        ConfigError: it takes other arguments, or cannot run here.
    """
    if is_basic_launcher(node["_target_"]):
        return Sequential()
    executor = built(node, key, "launcher", Executor)
    with as_config_error(key, node):
        executor.prepare()
    return executor


def execute_jobs(
    execute: Callable[[Sequence[Job]], list[RunResult]], jobs: Sequence[Job], is_silent: bool
) -> tuple[list[RunResult], float]:
    """Execute jobs in this process by the method of their unit, as soon as no other process trains them.

    Returns:
        their results, and the processor seconds of this process and of its children that have ended.
    """
    if is_silent:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if any(job.config["allow_targets"] for job in jobs):
        import_from_working_folder()  # submitit's processes do not
    results, waiting = dict[Path, RunResult](), list(jobs)
    while waiting:
        # The same job of another start of this sweep may still save its state, or run elsewhere.
        folders = wait_until_free([job.folder for job in waiting], _PATIENCE_SECONDS)
        free = [job for job in waiting if job.folder in folders]
        results |= dict(zip((job.folder for job in free), execute(free), strict=True))
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
