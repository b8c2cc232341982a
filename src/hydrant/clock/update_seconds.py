"""How many seconds an update takes, which durations such as `300s` need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from hydrant.clock.steps import Steps

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

    def steps(self, batch_sizes: Steps[int]) -> Steps[Fraction]:
        """Return the seconds of each update."""
        self.is_used = True
        seconds = {size: Fraction(value) for size, value in self.measured.items()}
        return Steps(
            batch_sizes.starts, tuple(seconds.get(size, self._assumed) for size in batch_sizes.values)
        )
