"""Which jobs of a sweep are the same program, and how they are divided into stacks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from hydrant.config.flat import flatten
from hydrant.errors import ConfigError
from hydrant.files.plain_values import PositiveInt

J = TypeVar("J")
"""What stands for a job in a plan, such as its folder."""

Lanes = PositiveInt | Literal["auto"]
"""The most lanes of a stack; auto: as many as fit into memory, spread over the processors."""

ONLY_ONE = "no other job is the same program"
"""The reason why a job trains alone although it could be stacked."""


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
            by_reason[reason].append(numbers[job])
        lines = ["; ".join(parts)] if parts else []
        for reason, alike in sorted(by_reason.items(), key=lambda entry: min(entry[1])):
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


def even_parts(jobs: Sequence[J], count: int) -> list[list[J]]:
    """Divide jobs into this many stacks of about equal size.

    >>> even_parts(range(5), 2)
    [[0, 1, 2], [3, 4]]
    """
    size = math.ceil(len(jobs) / max(count, 1))
    return [list(jobs[start : start + size]) for start in range(0, len(jobs), size)]


_ANY_VALUE = ("seed", "name", "claim", "tags", "notes", "init_from", "init_strict", "patience", "max_skipped", "resume",
              "max_grad_norm", "max_grad_value")  # fmt: skip
"""Keys in which the lanes of a stack may differ."""

_ANY_GROUPS = ("scheduler.", "schedules.")
"""Groups in which the lanes may differ in any key."""

_DURATIONS_OF_AVERAGES = ("averaging.start", "averaging.every")  # also averaging.start_after

_FRACTIONS = ("averaging.", "optimizer.", "optimizers.", "task.", "model.", "param_groups.")
"""Groups in which the lanes may differ in fractions."""


def program_of(config: Mapping[str, Any]) -> str:
    """Return a text that is equal for configs that may be the same program.

    >>> one, other = {"seed": 0, "optimizer": {"lr": 0.1}}, {"seed": 1, "optimizer": {"lr": 0.2}}
    >>> program_of(one) == program_of(other) != program_of({"seed": 0, "optimizer": {"lr": 0.1, "nesterov": True}})
    True
    """
    kept = {key: _without_fractions(key, value) for key, value in flatten(config).items()}
    return repr(sorted((key, value) for key, value in kept.items() if value is not ...))


def _without_fractions(key: str, value: Any) -> Any:
    """Return the values that must be equal in the lanes of a stack; `...` for a value that may differ."""
    if key in _ANY_VALUE:
        return None if value is None and key.startswith("max_grad") else ...
    if key.startswith(_ANY_GROUPS + _DURATIONS_OF_AVERAGES):
        return ...
    if key.startswith(_FRACTIONS):
        if isinstance(value, list):
            return [float if isinstance(item, float) else item for item in value]
        return float if isinstance(value, float) else value
    return value
