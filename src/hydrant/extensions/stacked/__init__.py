"""Several runs of the same program as one: their weights are stacked, and torch maps each update over the lanes.

Here is the launcher, which plans which jobs train together, without torch.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from hydrant.errors import ConfigError
from hydrant.files.plain_values import PositiveInt
from hydrant.runs.job import Job, RunResult
from hydrant.sweeps.executors.base import Executor, StopSignal, SweepJob, Unit, UnitsEnded, executor_of
from hydrant.sweeps.fork_server.call import ProcessDied
from hydrant.sweeps.preflight import call_before_jobs
from hydrant.terminal.console import say, show_activity, wants_json

Configs = Mapping[Path, Mapping[str, Any]]
"""The checked configs of jobs, by folder."""

Lanes = PositiveInt | Literal["auto"]
"""The most lanes of a stack; auto: as many as fit into memory, spread over the processors."""

ONLY_ONE = "no other job is the same program"
"""The reason why a job trains alone although it could be stacked."""


class StackPlan(NamedTuple):
    """How jobs train, by their folders. A stack of one job trains alone."""

    stacks: Sequence[Sequence[Path]] = ()
    alone: Mapping[Path, str | ConfigError] = MappingProxyType({})  # why a job trains alone, or cannot run


class Stack(Unit):
    """Jobs that train together, as the lanes of a stack."""

    preload = ("hydrant.extensions.stacked.runs",)  # and `hydrant.runs.execute`

    @staticmethod
    def execute(jobs: Sequence[Job]) -> list[RunResult]:
        from hydrant.extensions.stacked.runs import execute_stack  # imports torch

        results = zip(jobs, execute_stack(jobs), strict=True)
        # The trial of two jobs may show no value by which others cannot be stacked.
        return [execute_stack([j])[0] if r.error_type == "CannotStack" else r for j, r in results]

    def announce(self, where: str = "") -> None:
        if len(self.jobs) == 1:
            super().announce(where)
        elif not self.jobs[0].in_table:
            numbers = numbers_text([job.number for job in self.jobs])
            say(f"jobs {numbers}: a stack of {len(self.jobs)} lanes{where and f' ({where})'}")


class Stacked(Executor):
    """Lets jobs of the same program train together, where another launcher runs them.

    Jobs stack if their configs are the same program. Whether torch can map it over lanes is tried with two of them, in
    a process of its own. `executor`, a node such as `hydra.launcher`, runs the stacks.

    Args:
        lanes: the most lanes of a stack; auto: as many as fit into memory, spread over what runs at once.
    """

    unit = Stack

    def __init__(self, lanes: Lanes, executor: Mapping[str, Any]) -> None:
        self._executor = executor_of(executor, "hydra.launcher.executor")
        self.is_remote, self.num_jobs, self._lanes = self._executor.is_remote, self._executor.num_jobs, lanes
        self.max_jobs = None if lanes == "auto" else lanes
        self._plan = StackPlan()

    @property
    def queues(self) -> list[str]:
        return self._executor.queues

    def run(self, units: Sequence[Unit], stop_signal: StopSignal) -> UnitsEnded:
        return self._executor.run(units, stop_signal)

    def find_errors(self, jobs: Sequence[SweepJob]) -> list[ConfigError | None]:
        self._make_plan(jobs)
        reasons = (self._plan.alone.get(job.folder) for job in jobs)
        return [reason if isinstance(reason, ConfigError) else None for reason in reasons]

    def units(self, jobs: Sequence[SweepJob]) -> list[Unit]:
        """Return the stacks, and print how many there are and why the other jobs train alone."""
        by_folder = {job.folder: job for job in jobs}
        if not by_folder.keys() <= {folder for stack in self._plan.stacks for folder in stack}:
            self._make_plan(jobs)
        stacks = list[list[SweepJob]]()
        for stack in self._plan.stacks:
            alike = defaultdict[str, list[SweepJob]](list)  # of one process, so with the same variables
            for job in (by_folder[folder] for folder in stack if folder in by_folder):
                alike[repr(sorted(job.environment.items()))].append(job)
            stacks += alike.values()
        reasons = {job.number: self._plan.alone.get(folder) for folder, job in by_folder.items()}
        for n, why in reasons.items():
            if isinstance(why, ConfigError):  # data that are missing here may be on another machine
                reasons[n] = f"it cannot be prepared on this machine ({why})" if self.is_remote else None
        for line in [] if wants_json() else describe([[job.number for job in s] for s in stacks], reasons):
            say(line)
        return [Stack(stack) for stack in stacks]

    def _make_plan(self, jobs: Sequence[SweepJob]) -> None:
        """Plan which jobs train together.

        Raises:
            Stopped: a signal arrived.
        """
        show_activity(f"trying which of {len(jobs):,} jobs train together")
        configs = {job.folder: job.config for job in jobs}
        preload = Stack.paths_to_preload([*configs.values()])
        at_once = 1 if self.is_remote else self.num_jobs  # elsewhere, the stacks are as large as they can be
        plan = call_before_jobs(preload, plan_in_process, configs, self._lanes, at_once)
        if isinstance(plan, ProcessDied):
            plan = StackPlan([[job] for job in configs], {jobs[0].folder: f"trying it failed ({plan})"})
        self._plan = plan


def plan_in_process(configs: Configs, lanes: Lanes, num_processes: int | None) -> StackPlan:
    """Call `plan_stacks`."""
    from hydrant.extensions.stacked.check import plan_stacks  # imports torch

    return plan_stacks(configs, lanes, num_processes)


def describe(stacks: Sequence[Sequence[int]], reasons: Mapping[int, object]) -> list[str]:
    """Return lines that say how many stacks and lanes there are, and why each other job trains alone.

    Args:
        stacks: the numbers of their jobs. A stack of one job trains alone.
        reasons: by the number of the job; None: it is not said.
    """
    sizes = [f"{len(stack)}" for stack in stacks if len(stack) > 1]
    alone = len(stacks) - len(sizes)
    parts = [f"{len(sizes)} stack{'s' * (len(sizes) > 1)} of {', '.join(sizes)} lanes"] if sizes else []
    parts += [f"{alone} job{'s' * (alone > 1)} alone"] if alone else []
    lines = ["; ".join(parts)] if parts else []
    for reason in dict.fromkeys(filter(None, reasons.values())):
        alike = [number for number, why in reasons.items() if why == reason]
        remedy = "" if reason == ONLY_ONE else "; hydra/launcher=local trains all jobs alone"
        lines.append(f"  job{'s' * (len(alike) > 1)} {numbers_text(alike)} alone: {reason}{remedy}")
    return lines


def numbers_text(numbers: Sequence[int]) -> str:
    """Return the numbers of jobs as ranges.

    >>> numbers_text([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    ranges = list[list[int]]()
    for number in sorted(numbers):
        if ranges and number == ranges[-1][-1] + 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in ranges)
