"""Time, counted in updates. The one place that converts durations; everything else counts updates.

A duration is written `500` (updates), `10ep` (epochs), `64000sa` (samples) or, inside a run, `5%` of its
horizon. An update consumes `global_batch_size` samples, and the sample stream runs through epoch after epoch
without a gap, so the updates of `10ep` are `ceil(10 * num_samples / global_batch_size)`: at least ten epochs.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

from hydrant.errors import ConfigError, shown

_DURATION = re.compile(r"(?P<amount>\d+(\.\d*)?([eE][+-]?\d+)?|\.\d+)\s*(?P<unit>ep|sa|%)?")


@dataclass(frozen=True)
class Duration:
    """An amount of time: `unit` is `""` (updates), `"ep"`, `"sa"` or `"%"`."""

    amount: Fraction
    unit: str

    @classmethod
    def parse(cls, value: object, key: str) -> Duration:
        """Read a duration as the user wrote it; `key` names it in the error.

        >>> Duration.parse("10ep", "duration")
        Duration(amount=Fraction(10, 1), unit='ep')
        """
        match = None if isinstance(value, bool) else _DURATION.fullmatch(str(value).strip())
        if match is None:
            forms = ["500 (updates)", "10ep (epochs)", "64000sa (samples)"]
            forms += [] if key == "duration" else ["5% (of the run)"]
            forms += ["null (never)"] if key.endswith("_every") else []
            listing = f"{', '.join(forms[:-1])} or {forms[-1]}"
            raise ConfigError(key, f"{shown(value)} is no duration; write {listing}")
        duration = cls(Fraction(match["amount"]), match["unit"] or "")
        if duration.unit == "" and duration.amount.denominator != 1:
            raise ConfigError(key, f"{value!r} is not a whole number of updates; did you mean {value}ep?")
        return duration


@dataclass(frozen=True)
class Clock:
    """The horizon of a run and the conversion of every duration in it.

    >>> clock = Clock.start("2ep", num_samples=1000, global_batch_size=64)
    >>> clock.total_updates, clock.updates("5%", "scheduler.warmup"), clock.epoch(16)
    (32, 2, 1.024)
    """

    num_samples: int
    global_batch_size: int
    total_updates: int

    @classmethod
    def start(cls, duration: object, *, num_samples: int, global_batch_size: int) -> Clock:
        """The clock of a run of `duration` over a training set of `num_samples`."""
        parsed = Duration.parse(duration, "duration")
        if parsed.unit == "%":
            raise ConfigError("duration", f"{duration!r} is a share of itself; write 500, 10ep or 64000sa")
        total = _to_updates(parsed, num_samples, global_batch_size, total_updates=0)
        if total < 1:
            raise ConfigError("duration", f"{duration!r} is no update at all; the shortest run is duration=1")
        return cls(num_samples, global_batch_size, total)

    def updates(self, duration: object, key: str) -> int:
        """A duration in updates, 0 allowed; `key` names it in errors."""
        return _to_updates(
            Duration.parse(duration, key), self.num_samples, self.global_batch_size, self.total_updates
        )

    def cadence(self, duration: object, key: str) -> Cadence:
        """How often something is due; `None` is never."""
        if duration is None:
            return Cadence(None)
        every = self.updates(duration, key)
        if every < 1:
            raise ConfigError(key, f"{duration!r} is less than one update; write null for never")
        return Cadence(every)

    def epoch(self, num_updates: int) -> float:
        """Passes over the training set after `num_updates`: for display, never a control variable."""
        return num_updates * self.global_batch_size / self.num_samples


@dataclass(frozen=True)
class Cadence:
    """Due at every multiple of `every` updates, or never.

    >>> [n for n in range(7) if Cadence(3).due(n)], Cadence(None).due(3)
    ([3, 6], False)
    """

    every: int | None

    def due(self, num_updates: int) -> bool:
        return self.every is not None and num_updates > 0 and num_updates % self.every == 0


def _to_updates(duration: Duration, num_samples: int, batch_size: int, total_updates: int) -> int:
    amount = duration.amount
    match duration.unit:
        case "ep":
            return math.ceil(amount * num_samples / batch_size)
        case "sa":
            return math.ceil(amount / batch_size)
        case "%":
            return round(amount * total_updates / 100)
        case _:
            return int(amount)
