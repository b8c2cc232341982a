"""How the jobs of a sweep are divided into stacks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hydrant.errors import ConfigError

Lanes = int | Literal["auto"]
"""The most lanes of a stack; auto: as many as fit into memory, spread over the processors."""


@dataclass(frozen=True)
class StackPlan:
    """How jobs train, by their position: those of a stack together, a stack of one alone."""

    stacks: Sequence[Sequence[int]]
    reasons: Mapping[int, str] = field(
        default_factory=dict[int, str]
    )  # why a job trains alone, if it could not stack
    errors: Mapping[int, ConfigError] = field(default_factory=dict[int, ConfigError])  # why a job cannot run

    def describe(self) -> list[str]:
        """Return lines that say how many stacks and lanes there are, and why each other job trains alone."""
        stacks = [stack for stack in self.stacks if len(stack) > 1]
        alone = sum(len(stack) == 1 for stack in self.stacks)
        counts = ", ".join(f"{len(stack)}" for stack in stacks)
        lines = [f"{len(stacks)} stack{'s' * (len(stacks) != 1)} of {counts} lanes"] if stacks else []
        if alone and not stacks:
            lines = ["no job can be stacked"]
        elif alone:
            lines[0] += f"; {alone} job{'s' * (alone != 1)} alone"
        by_reason = defaultdict[str, list[int]](list)
        for number, reason in self.reasons.items():
            by_reason[reason].append(number)
        for reason, numbers in by_reason.items():
            jobs = f"job {numbers[0]}" if len(numbers) == 1 else f"{len(numbers)} jobs, such as {numbers[0]},"
            lines.append(f"{jobs} cannot be stacked: {reason}; hydra/launcher=local trains all jobs alone")
        return lines


def check_lanes(lanes: Any) -> Lanes:
    """Return a valid `hydra.launcher.lanes`; raise ConfigError for any other."""
    if lanes != "auto" and (type(lanes) is not int or lanes < 1):
        raise ConfigError("hydra.launcher.lanes", f"needs 1 or more, or auto, not {lanes}")
    return lanes


def even_parts(numbers: Sequence[int], count: int) -> list[list[int]]:
    """Divide jobs into this many stacks of about equal size.

    >>> even_parts(range(5), 2)
    [[0, 1, 2], [3, 4]]
    """
    size = math.ceil(len(numbers) / max(count, 1))
    return [list(numbers[start : start + size]) for start in range(0, len(numbers), size)]
