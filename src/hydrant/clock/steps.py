"""`Steps`: an amount per update that changes at some updates, and its sum over the updates before."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Generic, TypeVar

Amount = TypeVar("Amount", int, Fraction)


@dataclass(frozen=True)
class Steps(Generic[Amount]):
    """An amount of something in each update, such as its samples or seconds. A constant has one step.

    Args:
        starts: the updates from which on the values hold, in rising order. The first one is 0.
        values: the amount in each update from the start on, above 0.

    >>> sizes = Steps((0, 10), (64, 128))
    >>> [sizes.value(n) for n in (0, 9, 10, 99)], [sizes.total(n) for n in (1, 10, 12)]
    ([64, 64, 128, 128], [64, 640, 896])
    >>> sizes.reach(640 + 64)
    Fraction(21, 2)
    """

    starts: tuple[int, ...]
    values: tuple[Amount, ...]
    _totals: tuple[Amount, ...] = field(init=False, repr=False, compare=False)  # before each start

    def __post_init__(self) -> None:
        lengths = (end - start for start, end in itertools.pairwise(self.starts))
        amounts = (length * value for length, value in zip(lengths, self.values, strict=False))
        object.__setattr__(self, "_totals", tuple(itertools.accumulate(amounts, initial=0)))

    @classmethod
    def constant(cls, value: Amount) -> Steps[Amount]:
        """Return the same amount in every update."""
        return cls((0,), (value,))

    @property
    def is_constant(self) -> bool:
        return len(self.values) == 1

    def value(self, num_updates: int) -> Amount:
        """Return the amount in the update after `num_updates` completed ones."""
        return self.values[bisect_right(self.starts, num_updates) - 1]

    def total(self, num_updates: int) -> Amount:
        """Return the amount in the first `num_updates` updates."""
        place = bisect_right(self.starts, num_updates) - 1
        return self._totals[place] + (num_updates - self.starts[place]) * self.values[place]

    def reach(self, amount: int | Fraction) -> Fraction:
        """Return after how many updates, with a fraction of one, `amount` is reached; it is at least 0."""
        place = bisect_right(self._totals, amount) - 1
        return self.starts[place] + Fraction(amount - self._totals[place]) / self.values[place]

    def since(self, num_updates: int) -> Steps[Amount]:
        """Return the same amounts, with updates counted from `num_updates` on.

        >>> Steps((0, 10), (64, 128)).since(4), Steps((0, 10), (64, 128)).since(12)
        (Steps(starts=(0, 6), values=(64, 128)), Steps(starts=(0,), values=(128,)))
        """
        place = bisect_right(self.starts, num_updates) - 1
        later = (start - num_updates for start in self.starts[place + 1 :])
        return Steps((0, *later), self.values[place:])

    def capped(self, limit: Fraction) -> Steps[Fraction]:
        """Return steps with no value above `limit`."""
        return Steps(self.starts, tuple(min(Fraction(value), limit) for value in self.values))
