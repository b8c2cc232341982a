"""Time, counted in updates. This module converts durations; everything else counts updates.

A duration is written `500` (updates), `10ep` (epochs), `64000sa` (samples), `10Mtok` (tokens), `1e15flop` (FLOPs),
`300s`, `5min` or `2h` (of training) or, inside a run, `5%` of its duration. One epoch follows another without a gap. So
`10ep` are `ceil(10 * num_samples / global_batch_size)` updates: at least ten epochs. What repeats is not rounded once
but at each of its multiples (`Interval`), so it stays in step with the epochs.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from hydrant.errors import ConfigError, shown

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

    def __post_init__(self) -> None:
        self._of_run = (self.log_every, self.eval_every, self.save_every, self.histogram_every)

    def due(self, num_updates: int, *, is_last: bool = False) -> Due:
        """Return what is due after `num_updates` updates.

        After the last update, everything with an interval is due except hooks, which follow their own interval.
        """
        if num_updates in self._quiet and not is_last:
            return NOTHING
        self._quiet = range(num_updates + 1, self.following(num_updates))
        hooks = tuple(name for name, interval in self.hooks.items() if interval.due(num_updates))
        due = Due(*(i.is_on and (is_last or i.due(num_updates)) for i in self._of_run), hooks=hooks)
        return due if any(due) else NOTHING

    def following(self, num_updates: int) -> int:
        """Return the first update after `num_updates` after which something is due; if none is, one that no run
        reaches."""
        following = [i.following(num_updates) for i in (*self._of_run, *self.hooks.values()) if i.is_on]
        return min(following, default=_NEVER)


_PREFIXES = {"k": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
"""Multipliers in front of `sa`, `tok` and `flop`. `B` is the billion of language models."""
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(
    r"(?P<amount>\d+(\.\d*)?([eE][+-]?\d+)?|\.\d+)\s*"
    r"((?P<prefix>[kMGBTPE])?(?P<counted>sa|tok|flop)|(?P<time>s|min|h|d)|(?P<other>ep|%))?"
)
_FORMS = ("500 (updates)", "10ep (epochs)", "64000sa (samples)", "10Mtok (tokens)", "1e15flop (FLOPs)",
          "5min (of training)")  # fmt: skip


@dataclass(frozen=True)
class Duration:
    """An amount of time. `unit` is `""` (updates), `"ep"`, `"sa"`, `"tok"`, `"flop"`, `"s"` or `"%"`."""

    amount: Fraction
    unit: str

    @classmethod
    def parse(cls, value: object, key: str) -> Duration:
        """Parse a duration as the user wrote it; `key` names it in the error.

        >>> Duration.parse("10ep", "duration"), Duration.parse("2min", "duration")
        (Duration(amount=Fraction(10, 1), unit='ep'), Duration(amount=Fraction(120, 1), unit='s'))
        >>> Duration.parse("1.5Mtok", "duration")
        Duration(amount=Fraction(1500000, 1), unit='tok')
        """
        match = None if isinstance(value, bool) else _DURATION.fullmatch(str(value).strip())
        parts = {} if match is None else match.groupdict("")
        amount = Fraction(parts.get("amount", 0))
        unit = "s" if parts.get("time") else parts.get("counted") or parts.get("other") or ""
        is_part = unit == "" and amount.denominator != 1  # of an update
        if match is None or is_part or (unit == "%" and key == "duration"):
            forms = [*_FORMS, *([] if key == "duration" else ["5% (of the run)"])]
            forms += ["null (never)"] if key.endswith("_every") else []
            listing = f"{', '.join(forms[:-1])} or {forms[-1]}"
            raise ConfigError(key, f"{shown(value)} is not a duration", remedy=f"write {listing}")
        return cls(amount * _SECONDS.get(parts["time"], 1) * _PREFIXES.get(parts["prefix"], 1), unit)


PLACEHOLDERS = {"num_updates": "100%", "num_updates_per_epoch": "1ep"}
"""Names that stand for numbers of updates in the arguments of a scheduler with a `step` method."""


def converted(value: Any, convert: Callable[[str], int]) -> Any:
    """Return a config value in which every duration with a unit, and every placeholder, is converted.

    >>> converted({"milestones": ["1ep", 50], "mode": "min"}, lambda text: 24)
    {'milestones': [24, 50], 'mode': 'min'}
    """
    match value:
        case str():
            match = _DURATION.fullmatch(value)
            has_unit = match is not None and any(match[unit] for unit in ("counted", "time", "other"))
            return convert(value) if has_unit or value in PLACEHOLDERS else value
        case list():
            return [converted(item, convert) for item in value]
        case dict():
            return {name: converted(item, convert) for name, item in value.items()}
        case _:
            return value


ASSUMED_UPDATES = 10_000
"""The assumed number of updates of a run whose duration is in seconds, until its pace is measured."""
_ASSUMED_SECONDS = Fraction(1, 10)
"""The assumed seconds of an update, if other durations are in seconds but that of the run is not."""


@dataclass
class UpdateSeconds:
    """The seconds of an update, by its number of samples. Where they are not measured, they are assumed.

    Args:
        measured: the seconds by number of samples, measured once before the first update. Checkpoints hold them, so
            that the horizon of a run stays the same.
    """

    measured: Mapping[int, float] = field(default_factory=dict[int, float])
    is_used: bool = field(default=False, init=False)  # a duration is in seconds
    assumed: Fraction = field(default=_ASSUMED_SECONDS, init=False)

    def steps(self, sizes: Steps[int]) -> Steps[Fraction]:
        """Return the seconds of each update."""
        self.is_used = True
        seconds = {size: Fraction(value) for size, value in self.measured.items()}
        return Steps(sizes.starts, tuple(seconds.get(size, self.assumed) for size in sizes.values))


class SampleCosts(NamedTuple):
    """The tokens and FLOPs of one training sample; 0 if it has none, or their number is unknown."""

    tokens: int = 0
    flops: int = 0  # to train on it


_NO_COSTS = SampleCosts()


@dataclass(frozen=True)
class Clock:
    """The number of updates of a run, and the conversion of every duration in it.

    Args:
        num_samples: of the training set.
        batch_sizes: samples per update.
        total_updates: the number of updates of the run.
        costs: the tokens and FLOPs of a sample.
        update_seconds: how long an update takes.

    >>> clock = Clock.start("2ep", num_samples=1000, batch_sizes=Steps.constant(64))
    >>> clock.total_updates, clock.updates("5%", "scheduler.warmup"), clock.epoch(16)
    (32, 2, 1.024)
    """

    num_samples: int
    batch_sizes: Steps[int]
    total_updates: int
    costs: SampleCosts = _NO_COSTS
    update_seconds: UpdateSeconds = field(default_factory=UpdateSeconds, compare=False)

    @classmethod
    def start(
        cls,
        duration: object,
        *,
        num_samples: int,
        batch_sizes: Steps[int],
        costs: SampleCosts = _NO_COSTS,
        update_seconds: UpdateSeconds | None = None,
    ) -> Clock:
        """Return the clock of a run of `duration` over a training set of `num_samples`.

        Raises:
            ConfigError: the duration is a percentage, or has less than one update or too many.
        """
        key, update_seconds = "duration", update_seconds or UpdateSeconds()
        parsed = Duration.parse(duration, key)
        if parsed.unit == "s":
            update_seconds.assumed = parsed.amount / ASSUMED_UPDATES
        clock = cls(num_samples, batch_sizes, 0, costs, update_seconds)
        total = clock.updates(duration, key)
        if total < 1:
            message = f"{duration!r} is less than one update"
            raise ConfigError(key, message, remedy="the shortest run is duration=1")
        return replace(clock, total_updates=total)

    def updates(self, duration: object, key: str) -> int:
        """Convert a duration from the start of the run to updates, at least 0; `key` names it in errors."""
        amount, axis, rounded = self._measured(duration, key)
        exact = amount if axis is None else axis.reach(amount)
        return rounded(exact.numerator, exact.denominator)

    def updates_before(self, end: int, duration: object, key: str) -> int:
        """Convert a duration that ends after `end` updates to the number of its updates.

        >>> clock = Clock(1000, Steps((0, 10), (50, 100)), total_updates=20)
        >>> clock.updates("1ep", "cooldown"), clock.updates_before(20, "1ep", "cooldown")
        (15, 10)
        """
        amount, axis, rounded = self._measured(duration, key)
        if axis is not None:
            missing = max(amount - axis.total(end), Fraction(0)) / axis.values[0]  # longer than the run
            amount = end - axis.reach(max(axis.total(end) - amount, Fraction(0))) + missing
        return rounded(amount.numerator, amount.denominator)

    def interval(self, duration: object, key: str) -> Interval:
        """Return how often something is due, at most once an update. If the key ends in `_every`, None means never.

        Raises:
            ConfigError: it is no duration, or it is 0.
        """
        if duration is None and key.endswith("_every"):
            return Interval(None)
        amount, axis, rounded = self._measured(duration, key)
        if amount == 0:
            remedy = "write null for never" if key.endswith("_every") else "give 1 or more"
            raise ConfigError(key, f"{duration!r} is less than one update", remedy=remedy)
        if axis is None or axis.is_constant:
            return Interval(max(amount if axis is None else axis.reach(amount), Fraction(1)), rounded)
        capped = Steps(axis.starts, tuple(min(Fraction(value), amount) for value in axis.values))
        return Interval(amount, rounded, capped)

    def _measured(
        self, duration: object, key: str
    ) -> tuple[Fraction, Steps[int] | Steps[Fraction] | None, Rounding]:
        """Return the amount of a duration, the amount in each update (None: 1), and the rounding to updates."""
        amount, unit = (parsed := Duration.parse(duration, key)).amount, parsed.unit
        match unit:
            case "ep":
                return amount * self.num_samples, self.batch_sizes, rounded_up
            case "sa":
                return amount, self.batch_sizes, rounded_up
            case "tok" | "flop":
                counts = {"tok": ("tokens", self.costs.tokens), "flop": ("FLOPs", self.costs.flops)}
                name, per_sample = counts[unit]
                if not per_sample:
                    message = f"{duration!r} counts {name}, but a sample has none that are known"
                    raise ConfigError(key, message, remedy="write it in samples, such as 64000sa")
                return amount / per_sample, self.batch_sizes, rounded_up
            case "s":
                return amount, self.update_seconds.steps(self.batch_sizes), rounded_to_nearest
            case "%":
                return amount * self.total_updates / 100, None, rounded_to_nearest
            case _:
                return amount, None, rounded_up

    def since(self, num_updates: int) -> Clock:
        """Return the clock that counts from `num_updates` on. The run, which percentages refer to, stays as long."""
        return replace(self, batch_sizes=self.batch_sizes.since(num_updates))

    @property
    def unmeasured_sizes(self) -> list[int]:
        """The batch sizes whose updates are to be timed, because durations are in seconds; empty if none are."""
        sizes, seconds = dict.fromkeys(self.batch_sizes.values), self.update_seconds
        return [size for size in sizes if size not in seconds.measured] if seconds.is_used else []

    @property
    def placeholders(self) -> dict[str, int]:
        """What the names in `PLACEHOLDERS` stand for."""
        return {name: self.updates(duration, name) for name, duration in PLACEHOLDERS.items()}

    def epoch(self, num_updates: int) -> float:
        """Return the passes over the training set after `num_updates`: for display, never for control."""
        return self.batch_sizes.total(num_updates) / self.num_samples

    def epochs_text(self, num_updates: int) -> str:
        """Return the passes over the training set as text, a whole number if they end within the last update.

        >>> clock = Clock.start("10ep", num_samples=1437, batch_sizes=Steps.constant(64))
        >>> clock.epochs_text(clock.total_updates), clock.epochs_text(100), clock.epochs_text(23)
        ('10 epochs', '4.45 epochs', '1 epoch')
        """
        epochs = self.epoch(num_updates)
        whole = int(epochs)
        if whole and self.updates(f"{whole}ep", "duration") == num_updates:
            return f"{whole:,} epoch{'s' * (whole != 1)}"
        return f"{epochs:,.3g} epochs" if epochs < 1000 else f"{epochs:,.0f} epochs"


def batch_size_steps(
    value: int | Literal["all"] | Mapping[str, int], num_samples: int, costs: SampleCosts = _NO_COSTS
) -> Steps[int]:
    """Return the samples per update of `global_batch_size`: a number, `all`, or a number from each of several updates.

    >>> batch_size_steps({"0": 64, "2ep": 128}, num_samples=640)
    Steps(starts=(0, 20), values=(64, 128))

    Raises:
        ConfigError: the first update is not 0, they do not rise, or one depends on the length of the run.
    """
    key = "global_batch_size"
    if not isinstance(value, Mapping):
        return Steps.constant(num_samples if value == "all" else value)
    starts, sizes = list[int](), list[int]()
    for begin, size in value.items():
        clock = Clock(num_samples, Steps(tuple(starts) or (0,), tuple(sizes) or (size,)), 0, costs)
        start = clock.updates(begin, key)
        depends_on_length = Duration.parse(begin, key).unit in ("%", "s")
        if depends_on_length or (start != 0 if not starts else start <= starts[-1]):
            remedy = "begin the first at 0, and each other later, by updates or epochs: {0: 64, 10ep: 128}"
            raise ConfigError(key, f"{size} cannot begin at {begin!r}", remedy=remedy)
        starts.append(start)
        sizes.append(size)
    if not starts:
        raise ConfigError(key, needs="a number, or sizes by the update where they begin: {0: 64, 1000: 128}")
    return Steps(tuple(starts), tuple(sizes))
