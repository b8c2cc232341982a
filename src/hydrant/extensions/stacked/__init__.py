"""Several runs of the same program as one: their weights are stacked, and torch maps each update over the lanes.

Here is the launcher, which plans which jobs train together, without torch.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from hydrant.errors import ConfigError
from hydrant.files.plain_values import PositiveInt
from hydrant.runs.job import Job, RunResult
from hydrant.sweeps.executors import executor_of
from hydrant.sweeps.executors.base import Executor, StopSignal, SweepJob, Unit, UnitsEnded
from hydrant.sweeps.fork_server.call import ProcessDied
from hydrant.sweeps.preflight import call_before_jobs
from hydrant.terminal.console import say, show_activity, wants_json

J = TypeVar("J", bound=Hashable)
"""What stands for a job in a plan, such as its folder."""

Lanes = PositiveInt | Literal["auto"]
"""The most lanes of a stack; auto: as many as fit into memory, spread over the processors."""

ONLY_ONE = "no other job is the same program"
"""The reason why a job trains alone although it could be stacked."""


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
            say(f"jobs {numbers}: a stack of {len(self.jobs)} lanes{where}")


class Stacked(Executor):
    """Lets jobs of the same program train together, where another launcher runs them.

    Jobs stack if their configs are the same program. Whether torch can map it over lanes is tried with two of them, in
    a process of its own.

    Args:
        lanes: the most lanes of a stack; auto: as many as fit into memory, spread over what runs at once.
        executor: runs the stacks: a node such as `hydra.launcher`.
    """

    unit = Stack

    def __init__(self, lanes: Lanes, executor: Mapping[str, Any]) -> None:
        self._executor = executor_of(executor, "hydra.launcher.executor")
        self.is_remote, self.num_jobs, self._lanes = self._executor.is_remote, self._executor.num_jobs, lanes
        self.max_jobs = None if lanes == "auto" else lanes
        self._plan = StackPlan[Path]([])

    @property
    def queues(self) -> list[str]:
        return self._executor.queues

    def run(self, units: Sequence[Unit], stop_signal: StopSignal) -> UnitsEnded:
        return self._executor.run(units, stop_signal)

    def find_errors(self, jobs: Sequence[SweepJob]) -> list[ConfigError | None]:
        errors = self._make_plan(jobs).errors
        return [errors.get(job.folder) for job in jobs]

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
        numbers = {folder: job.number for folder, job in by_folder.items()}
        plan = StackPlan([[job.folder for job in stack] for stack in stacks], self._plan.reasons)
        for line in [] if wants_json() else plan.describe(numbers):
            say(line)
        return [Stack(stack) for stack in stacks]

    def _make_plan(self, jobs: Sequence[SweepJob]) -> StackPlan[Path]:
        """Plan which jobs train together.

        Raises:
            Stopped: a signal arrived.
        """
        show_activity(f"trying which of {len(jobs):,} jobs train together")
        configs = {job.folder: job.config for job in jobs}
        preload = Stack.paths_to_preload([*configs.values()])
        at_once = 1 if self.is_remote else self.num_jobs  # elsewhere, the stacks are as large as they can be
        plan = call_before_jobs(preload, _plan_stacks, configs, self._lanes, at_once)
        if isinstance(plan, ProcessDied):
            reason = f"trying it failed ({plan})"
            plan = StackPlan([[folder] for folder in configs], {next(iter(configs)): reason})
        self._plan = plan.with_errors_as_reasons() if self.is_remote else plan
        return self._plan


@dataclass(frozen=True)
class StackPlan(Generic[J]):
    """How jobs train. A stack of one job trains alone."""

    stacks: Sequence[Sequence[J]]
    reasons: Mapping[J, str] = field(default_factory=dict[J, str])  # why a job trains alone
    errors: Mapping[J, ConfigError] = field(default_factory=dict[J, ConfigError])  # why a job cannot run

    def with_errors_as_reasons(self) -> StackPlan[J]:
        """Return the plan of jobs that train on other machines. Data that are missing here may be there."""
        reasons = {j: f"it cannot be prepared on this machine ({error})" for j, error in self.errors.items()}
        return StackPlan(self.stacks, {**self.reasons, **reasons})

    def describe(self, numbers: Mapping[J, int]) -> list[str]:
        """Return lines that say how many stacks and lanes there are, and why each other job trains alone.

        Args:
            numbers: those of the jobs in the sweep.
        """
        stacks = [stack for stack in self.stacks if len(stack) > 1]
        alone = len(self.stacks) - len(stacks)
        counts = ", ".join(f"{len(stack)}" for stack in stacks)
        parts = [f"{len(stacks)} stack{'s' * (len(stacks) > 1)} of {counts} lanes"] if stacks else []
        parts += [f"{alone} job{'s' * (alone > 1)} alone"] if alone else []
        by_reason = defaultdict[str, list[int]](list)
        for job, reason in self.reasons.items():
            if job in numbers:
                by_reason[reason].append(numbers[job])
        lines = ["; ".join(parts)] if parts else []
        for reason, alike in sorted(by_reason.items(), key=lambda entry: min(entry[1])):
            remedy = "" if reason == ONLY_ONE else "; hydra/launcher=local trains all jobs alone"
            lines.append(f"  job{'s' * (len(alike) > 1)} {numbers_text(alike)} alone: {reason}{remedy}")
        return lines


def _plan_stacks(
    configs: Mapping[Path, Mapping[str, Any]], lanes: Lanes, num_processes: int | None
) -> StackPlan[Path]:
    from hydrant.extensions.stacked.check import plan_stacks  # imports torch

    return plan_stacks(configs, lanes, num_processes)


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


def even_parts(jobs: Sequence[J], count: int) -> list[list[J]]:
    """Divide jobs into this many stacks of about equal size.

    >>> even_parts(range(5), 2)
    [[0, 1, 2], [3, 4]]
    """
    size = math.ceil(len(jobs) / max(count, 1))
    return [list(jobs[start : start + size]) for start in range(0, len(jobs), size)]
