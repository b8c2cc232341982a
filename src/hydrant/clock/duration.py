"""`Duration`: an amount of time as the user writes it, and the seconds of an update, which `300s` needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from hydrant.clock.interval import Steps
from hydrant.errors import ConfigError, shown

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
    _assumed: Fraction = field(default=_ASSUMED_SECONDS, init=False)

    def assume(self, run_seconds: Fraction) -> None:
        """Assume that a run of this many seconds makes `ASSUMED_UPDATES` updates."""
        self._assumed = run_seconds / ASSUMED_UPDATES

    def missing(self, batch_sizes: Steps[int]) -> list[int]:
        """Return the batch sizes whose updates must be measured, because a duration is in seconds."""
        sizes = dict.fromkeys(batch_sizes.values)
        return [size for size in sizes if size not in self.measured] if self.is_used else []

    def steps(self, sizes: Steps[int]) -> Steps[Fraction]:
        """Return the seconds of each update."""
        self.is_used = True
        seconds = {size: Fraction(value) for size, value in self.measured.items()}
        return Steps(sizes.starts, tuple(seconds.get(size, self._assumed) for size in sizes.values))
