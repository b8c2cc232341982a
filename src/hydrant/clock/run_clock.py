"""`Clock`: the number of updates of a run, and the conversion of every duration in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal, NamedTuple

from hydrant.clock.duration import PLACEHOLDERS, Duration, UpdateSeconds
from hydrant.clock.interval import Interval, Rounding, Steps, rounded_to_nearest, rounded_up
from hydrant.errors import ConfigError


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
            update_seconds.assume(parsed.amount)
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
        return Interval(amount, rounded, axis.capped(amount))

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
        return self.update_seconds.missing(self.batch_sizes)

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
    """Return the samples per update of `global_batch_size`: a number, or a number from each of several updates on.

    `all` are the `num_samples` of the training set.

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
            remedy = (
                "begin the first at 0, and each other one later, by updates or epochs: {0: 64, 10ep: 128}"
            )
            raise ConfigError(key, f"{size} cannot begin at {begin!r}", remedy=remedy)
        starts.append(start)
        sizes.append(size)
    if not starts:
        raise ConfigError(key, needs="a number, or sizes by the update where they begin: {0: 64, 1000: 128}")
    return Steps(tuple(starts), tuple(sizes))
