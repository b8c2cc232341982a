"""Time, counted in updates. Only this module converts durations; everything else counts updates.

A duration is written `500` (updates), `10ep` (epochs), `64000sa` (samples) or, inside a run, `5%` of its duration.
An update consumes `global_batch_size` samples, and one epoch follows another without a gap. So `10ep` are
`ceil(10 * num_samples / global_batch_size)` updates: at least ten epochs. What repeats is not rounded once but at each
of its multiples (`Interval`), so it stays in step with the epochs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple

from hydrant.errors import ConfigError, shown

_DURATION = re.compile(r"(?P<amount>\d+(\.\d*)?([eE][+-]?\d+)?|\.\d+)\s*(?P<unit>ep|sa|%)?")

Rounding = Callable[[int, int], int]
"""`(numerator, denominator) -> whole number`. Integers, because arithmetic with `Fraction` is slow."""


def rounded_up(numerator: int, denominator: int) -> int:
    """Return the smallest whole number that is not below a fraction."""
    return -(-numerator // denominator)


def rounded_to_nearest(numerator: int, denominator: int) -> int:
    """Return the nearest whole number, of two the even one, as Python's `round`."""
    below, rest = divmod(numerator, denominator)
    return below + (2 * rest > denominator - below % 2)


@dataclass(frozen=True)
class Duration:
    """An amount of time. `unit` is `""` (updates), `"ep"`, `"sa"` or `"%"`."""

    amount: Fraction
    unit: str

    @classmethod
    def parse(cls, value: object, key: str) -> Duration:
        """Parse a duration as the user wrote it; `key` names it in the error.

        >>> Duration.parse("10ep", "duration")
        Duration(amount=Fraction(10, 1), unit='ep')
        """
        match = None if isinstance(value, bool) else _DURATION.fullmatch(str(value).strip())
        if match is None:
            forms = ["500 (updates)", "10ep (epochs)", "64000sa (samples)"]
            forms += [] if key == "duration" else ["5% (of the run)"]
            forms += ["null (never)"] if key.endswith("_every") else []
            listing = f"{', '.join(forms[:-1])} or {forms[-1]}"
            raise ConfigError(key, f"{shown(value)} is not a duration; write {listing}")
        duration = cls(Fraction(match["amount"]), match["unit"] or "")
        if duration.unit == "" and duration.amount.denominator != 1:
            percent = f"{float(duration.amount * 100):g}% (of the run) or "
            meant = f"{percent if duration.amount < 1 and key != 'duration' else ''}{value}ep"
            raise ConfigError(key, f"{value!r} is not a whole number of updates; did you mean {meant}?")
        return duration


_MAX_UPDATES = 2**53  # a float counts no further
_NEVER = 1 << 62
PLACEHOLDERS = {"num_updates": "100%", "num_updates_per_epoch": "1ep"}
"""Names that stand for numbers of updates in the arguments of a scheduler with a `step` method."""


def converted(value: Any, convert: Callable[[str], int]) -> Any:
    """Return a config value in which every duration with a unit, and every placeholder, is converted.

    >>> converted({"milestones": ["1ep", 50], "mode": "min"}, lambda text: 24)
    {'milestones': [24, 50], 'mode': 'min'}
    """
    match value:
        case str():
            duration = _DURATION.fullmatch(value)
            return convert(value) if value in PLACEHOLDERS or (duration and duration["unit"]) else value
        case list():
            return [converted(item, convert) for item in value]
        case dict():
            return {name: converted(item, convert) for name, item in value.items()}
        case _:
            return value


@dataclass(frozen=True)
class Clock:
    """The number of updates of a run, and the conversion of every duration in it.

    >>> clock = Clock.start("2ep", num_samples=1000, global_batch_size=64)
    >>> clock.total_updates, clock.updates("5%", "scheduler.warmup"), clock.epoch(16)
    (32, 2, 1.024)
    """

    num_samples: int
    global_batch_size: int
    total_updates: int

    @classmethod
    def start(cls, duration: object, *, num_samples: int, global_batch_size: int) -> Clock:
        """Return the clock of a run of `duration` over a training set of `num_samples`."""
        key = "duration"
        if Duration.parse(duration, key).unit == "%":
            raise ConfigError(key, f"{duration!r} cannot be relative to itself; write 500, 10ep or 64000sa")
        total = cls(num_samples, global_batch_size, total_updates=0).updates(duration, key)
        if total < 1:
            raise ConfigError(key, f"{duration!r} is less than one update; the shortest run is duration=1")
        if total > _MAX_UPDATES:
            raise ConfigError(key, f"{duration!r} is more than {_MAX_UPDATES:,} updates; give less")
        return cls(num_samples, global_batch_size, total)

    def updates(self, duration: object, key: str) -> int:
        """Convert a duration to updates, at least 0; `key` names it in errors."""
        exact, rounded = self._exact(Duration.parse(duration, key))
        return rounded(exact.numerator, exact.denominator)

    def interval(self, duration: object, key: str) -> Interval:
        """Return how often something is due, at most once an update. If the key ends in `_every`, None means never."""
        if duration is None and key.endswith("_every"):
            return Interval(None)
        exact, rounded = self._exact(Duration.parse(duration, key))
        if exact == 0:
            remedy = "write null for never" if key.endswith("_every") else "give 1 or more"
            raise ConfigError(key, f"{duration!r} is less than one update; {remedy}")
        return Interval(max(exact, Fraction(1)), rounded)

    def _exact(self, duration: Duration) -> tuple[Fraction, Rounding]:
        """Return a duration in updates, and how it is rounded."""
        match duration.unit:
            case "ep":
                return duration.amount * self.num_samples / self.global_batch_size, rounded_up
            case "sa":
                return duration.amount / self.global_batch_size, rounded_up
            case "%":
                return duration.amount * self.total_updates / 100, rounded_to_nearest
            case _:
                return duration.amount, rounded_up

    @property
    def placeholders(self) -> dict[str, int]:
        """What the names in `PLACEHOLDERS` stand for."""
        return {name: self.updates(duration, name) for name, duration in PLACEHOLDERS.items()}

    def epoch(self, num_updates: int) -> float:
        """Return the passes over the training set after `num_updates`: for display, never for control."""
        return num_updates * self.global_batch_size / self.num_samples

    def epochs_text(self, num_updates: int) -> str:
        """Return the passes over the training set as text, a whole number if they end within the last update.

        >>> clock = Clock.start("10ep", num_samples=1437, global_batch_size=64)
        >>> clock.epochs_text(clock.total_updates), clock.epochs_text(100), clock.epochs_text(23)
        ('10 epochs', '4.45 epochs', '1 epoch')
        """
        epochs = self.epoch(num_updates)
        whole = int(epochs)
        if whole and self.updates(f"{whole}ep", "duration") == num_updates:
            return f"{whole:,} epoch{'s' * (whole != 1)}"
        return f"{epochs:,.3g} epochs" if epochs < 1000 else f"{epochs:,.0f} epochs"


@dataclass(frozen=True)
class Interval:
    """Due at every multiple of `every` updates, or never. Each multiple is rounded by `rounded`.

    >>> [n for n in range(7) if Interval(3).due(n)], Interval(None).due(3)
    ([3, 6], False)
    >>> half = Interval(Fraction(5, 2))
    >>> [n for n in range(11) if half.due(n)], half.count(9)
    ([3, 5, 8, 10], 3)
    """

    every: int | Fraction | None  # at least 1, so that no two multiples are the same update
    rounded: Rounding = rounded_up

    @property
    def is_on(self) -> bool:
        return self.every is not None

    @property
    def length(self) -> Fraction:
        """The updates from one multiple to the next, before they are rounded; it must be due at all."""
        assert self.every is not None
        return Fraction(self.every)

    def due(self, num_updates: int) -> bool:
        return num_updates > 0 and self.is_on and self.multiple(self.count(num_updates)) == num_updates

    def count(self, num_updates: int) -> int:
        """Return how often it is due in the first `num_updates` updates."""
        if self.every is None:
            return 0
        num_below = num_updates * self.every.denominator // self.every.numerator
        return num_below + (self.multiple(num_below + 1) <= num_updates)  # the next one may be rounded down

    def following(self, num_updates: int) -> int:
        """Return the first update after `num_updates` at which it is due; it must be due at all."""
        return self.multiple(self.count(num_updates) + 1)

    def multiple(self, number: int) -> int:
        """Return the update of the multiple `number`; it must be due at all."""
        assert self.every is not None
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
        """Return what is due after `num_updates` updates. After the last, everything with an interval is due, but no
        hook: what it does may depend on the number of updates only.
        """
        if num_updates in self._quiet and not is_last:
            return NOTHING
        intervals = (self.log_every, self.eval_every, self.save_every, self.histogram_every)
        both = (*intervals, *self.hooks.values())
        following = [i.following(num_updates) for i in both if i.is_on]
        self._quiet = range(num_updates + 1, min(following, default=_NEVER))
        hooks = tuple(name for name, interval in self.hooks.items() if interval.due(num_updates))
        due = Due(*(i.is_on and (is_last or i.due(num_updates)) for i in intervals), hooks=hooks)
        return due if any(due) else NOTHING
