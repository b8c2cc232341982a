"""Intervals of schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Interval:
    """Multiples of a number of updates, each rounded to a whole update by `rounded`."""

    length: Fraction
    rounded: Callable[[Fraction], int]

    def multiple(self, number: int) -> int:
        """Return the update of a multiple."""
        return self.rounded(number * self.length)

    def count(self, num_updates: int) -> int:
        """Return how many multiples lie in the first `num_updates` updates."""
        below = num_updates // self.length
        return below + (self.multiple(below + 1) <= num_updates)  # the next one may be rounded down

    def round(self, updates: Fraction) -> int:
        """Return a number of updates, rounded as a multiple is."""
        return self.rounded(updates)
