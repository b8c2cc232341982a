"""What executors run, and how they are asked to."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from hydrant.config.targets import imports_of
from hydrant.errors import ConfigError
from hydrant.isolation import Answer, ProcessDied, call_isolated
from hydrant.job import Job, Result, say
from hydrant.locking import is_held, wait_until_free
from hydrant.runs import read_run


class Executor(Protocol):
    """Runs jobs. Those that `is_elsewhere` may run on other machines than this one."""

    is_elsewhere: bool

    def prepare(self) -> None:
        """Raises ConfigError where it cannot run anything here."""
        ...

    def run(
        self, works: Sequence[Work], stop_signal: Callable[[], int | None]
    ) -> Iterator[tuple[Work, Result]]:
        """Run them; each with its result as it ends.

        Once `stop_signal` gives a signal, what runs is asked to save and to end, and the rest is left out.
        """
        ...


@dataclass(frozen=True)
class Work:
    """A job, to be run in a process of its own by whoever calls this."""

    number: int  # in the sweep
    job: Job
    environment: Mapping[str, str]  # what it wants besides what there is
    in_table: bool = False  # a table shows how far it is, so that nothing is to be said of it

    def announce(self, where: str = "") -> None:
        """Say that it starts."""
        if not self.in_table:
            waits = "; another process is training in it, and it waits" if is_held(self.job.folder) else ""
            say(f"job {self.number}: {self.job.folder.name}{where}{waits}")

    def call(
        self, environment: Mapping[str, str] | None = None, *, is_silent: bool = False
    ) -> Answer[Result]:
        """Run the job; one `is_silent` says nothing on stdout, where others run beside it."""
        variables = {**self.environment, **(environment or {})}
        answer = call_isolated(_execute, (self.job, is_silent), preload([self.job.config]), variables)
        result, signum = answer.result, answer.signum
        if isinstance(result, ProcessDied):
            told = f"stopped by a signal before it began; {self.job.same_command()} starts it again"
            result = Result(1, None, str(result)) if signum is None else Result(128 + signum, None, told)
        return Answer(result, signum)


def preload(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the processes of such jobs import: hydrant.cli by the command's own script, which each of them runs."""
    return ["hydrant.cli", "hydrant.run", "hydrant.executors.warm", *imports_of(configs)]


def result_in(job: Job, told: str) -> Result:
    """What its folder says of a job that nobody answers for; `told` where it did not end by itself."""
    run = read_run(job.folder)
    if run.status in ("finished", "pruned"):
        return Result(0, (run.summary.get("best") or {}).get("value"), "")
    if run.status == "preempted":
        return Result(143, None, f"stopped by a signal; {job.same_command()} continues it")
    return Result(1, None, told)


def need(package: str, launcher: str) -> None:
    """Raises ConfigError where a package is not installed."""
    if find_spec(package) is None:
        raise ConfigError("hydra/launcher", f"{launcher} needs {package}: pip install 'hydrant[{launcher}]'")


def _execute(job: Job, is_silent: bool) -> Result:
    from hydrant.run import execute  # brings in torch

    if is_silent:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    wait_until_free(
        job.folder
    )  # of an earlier start of the sweep: its last save, or a job that SLURM still has
    return execute(job)
