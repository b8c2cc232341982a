"""When something is due: at multiples of an interval or single updates; amounts per update that change (`Steps`)."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Generic, NamedTuple, TypeVar

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
        return Steps((0, *(start - num_updates for start in self.starts[place + 1 :])), self.values[place:])

    def capped(self, limit: Fraction) -> Steps[Fraction]:
        """Return steps with no value above `limit`."""
        return Steps(self.starts, tuple(min(Fraction(value), limit) for value in self.values))


Rounding = Callable[[int, int], int]
"""`(numerator, denominator) -> whole number`. Integers, because arithmetic with `Fraction` is slow."""

_NEVER = 1 << 62


def rounded_up(numerator: int, denominator: int) -> int:
    """Return the smallest whole number that is not below a fraction."""
    return -(-numerator // denominator)


def rounded_to_nearest(numerator: int, denominator: int) -> int:
    """Return the nearest whole number, of two the even one, as Python's `round`."""
    below, rest = divmod(numerator, denominator)
    return below + (2 * rest > denominator - below % 2)


@dataclass(frozen=True)
class Interval:
    """Due at every multiple of `every` updates, or never. Each multiple is rounded by `rounded`.

    With `axis`, `every` counts samples or another amount instead of updates; `axis` is the amount of each update.

    >>> [n for n in range(7) if Interval(3).due(n)], Interval(None).due(3)
    ([3, 6], False)
    >>> half = Interval(Fraction(5, 2))
    >>> [n for n in range(11) if half.due(n)], half.count(9)
    ([3, 5, 8, 10], 3)
    >>> growing = Interval(128, axis=Steps((0, 4), (64, 128)))
    >>> [n for n in range(7) if growing.due(n)]
    [2, 4, 5, 6]
    """

    every: int | Fraction | None  # at least what one update has, so that no two multiples are the same update
    rounded: Rounding = rounded_up
    axis: Steps[int] | Steps[Fraction] | None = None  # None: one per update

    @property
    def is_on(self) -> bool:
        return self.every is not None

    @property
    def length(self) -> Fraction:
        """The updates up to the first multiple, not rounded. `every` must not be None."""
        assert self.every is not None
        return Fraction(self.every) if self.axis is None else self.axis.reach(self.every)

    def due(self, num_updates: int) -> bool:
        return num_updates > 0 and self.is_on and self.multiple(self.count(num_updates)) == num_updates

    def count(self, num_updates: int) -> int:
        """Return how often it is due in the first `num_updates` updates."""
        if self.every is None:
            return 0
        amount = num_updates if self.axis is None else self.axis.total(num_updates)
        num_below = int(amount * self.every.denominator // self.every.numerator)
        return num_below + (self.multiple(num_below + 1) <= num_updates)  # the next one may be rounded down

    def following(self, num_updates: int) -> int:
        """Return the first update after `num_updates` at which it is due. `every` must not be None."""
        return self.multiple(self.count(num_updates) + 1)

    def multiple(self, number: int) -> int:
        """Return the update of the multiple `number`. `every` must not be None."""
        assert self.every is not None
        if self.axis is not None:
            return self.round(self.axis.reach(number * self.every))
        return self.rounded(number * self.every.numerator, self.every.denominator)

    def round(self, updates: Fraction) -> int:
        """Return a number of updates, rounded as a multiple is."""
        return self.rounded(updates.numerator, updates.denominator)


@dataclass(frozen=True)
class Updates:
    """Due at these updates only.

    >>> some = Updates(frozenset({3, 5}))
    >>> [n for n in range(7) if some.due(n)], some.following(3)
    ([3, 5], 5)
    """

    updates: frozenset[int]

    @property
    def is_on(self) -> bool:
        return bool(self.updates)

    def due(self, num_updates: int) -> bool:
        return num_updates in self.updates

    def following(self, num_updates: int) -> int:
        """Return the first of them after `num_updates`; after the last, a number that no run reaches."""
        return min((n for n in self.updates if n > num_updates), default=_NEVER)


class Due(NamedTuple):
    """What is due after an update."""

    log: bool
    eval: bool
    save: bool
    histogram: bool
    hooks: tuple[str, ...] = ()  # the names of those that are due


NOTHING = Due(log=False, eval=False, save=False, histogram=False)


@dataclass
class Intervals:
    """The intervals of a run.

    >>> intervals = Intervals(Interval(2), Interval(3), Interval(None), Interval(None))
    >>> intervals.due(1) is NOTHING, intervals.due(2).log, intervals.due(3).eval, intervals.due(4, is_last=True)
    (True, True, True, Due(log=True, eval=True, save=False, histogram=False, hooks=()))
    >>> never = Intervals(*[Interval(None)] * 4)
    >>> never.due(1) is NOTHING, never.due(10**9) is NOTHING
    (True, True)
    """

    log_every: Interval
    eval_every: Interval
    save_every: Interval
    histogram_every: Interval
    hooks: Mapping[str, Interval | Updates] = field(default_factory=dict[str, Interval | Updates])  # by name
    _quiet: range = field(default=range(0), init=False)  # updates after which nothing is due

    def due(self, num_updates: int, *, is_last: bool = False) -> Due:
        """Return what is due after `num_updates` updates.

        After the last update, everything with an interval is due except hooks, which follow their own interval.
        """
        if num_updates in self._quiet and not is_last:
            return NOTHING
        intervals = (self.log_every, self.eval_every, self.save_every, self.histogram_every)
        self._quiet = range(num_updates + 1, self.following(num_updates))
        hooks = tuple(name for name, interval in self.hooks.items() if interval.due(num_updates))
        due = Due(*(i.is_on and (is_last or i.due(num_updates)) for i in intervals), hooks=hooks)
        return due if any(due) else NOTHING

    def following(self, num_updates: int) -> int:
        """Return the first update after `num_updates` after which something is due; if none is, one that no run
        reaches."""
        intervals = (self.log_every, self.eval_every, self.save_every, self.histogram_every)
        following = [i.following(num_updates) for i in (*intervals, *self.hooks.values()) if i.is_on]
        return min(following, default=_NEVER)
