"""What a tracker is told about a run, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class RunIdentity:
    """Who a run is: everything a tracker may show of it. Plain types only."""

    folder: Path
    name: str
    group: str
    job_type: str
    tags: tuple[str, ...]
    config: Mapping[str, Any] = field(
        default_factory=dict
    )  # choices, then flattened keys: "optimizer.lr": 0.001
    notes: str = ""
    best: tuple[str, str] | None = None  # the metric that decides, and max or min


@dataclass(frozen=True)
class Histogram:
    """How the finite values of a tensor are spread: counts of bins of equal width from `low` to `high`."""

    low: float
    high: float
    counts: Sequence[int]
    total: float  # the sum of the values
    squares: float  # of their squares

    @property
    def edges(self) -> list[float]:
        """Of the bins: one more than there are bins.

        >>> Histogram(0.0, 1.0, (3, 1), 1.2, 0.9).edges
        [0.0, 0.5, 1.0]
        """
        width = (self.high - self.low) / len(self.counts)
        return [self.low + n * width for n in range(len(self.counts))] + [self.high]


class Tracker(Protocol):
    """A place where a run is followed; when it fails, the run goes on.

    Built as `tracker(identity, num_updates)`, where `num_updates` is where the run starts: 0, or the
    checkpoint's count when it resumes.
    """

    def log(self, row: Mapping[str, float]) -> None:
        """One row: `num_updates`, `epoch`, `time` (unix seconds) and any metrics. Finite or not, host floats."""
        ...

    def image(self, key: str, path: Path) -> None:
        """A picture in the run folder that belongs to the run."""
        ...

    def histograms(self, num_updates: int, histograms: Mapping[str, Histogram]) -> None:
        """Of weights and gradients, by name."""
        ...

    def file(self, path: Path) -> None:
        """Any other file in the run folder that is to be kept with the run."""
        ...

    def checkpoint(self, path: Path) -> None:
        """A checkpoint was written, whole, into the run folder's `checkpoints/`."""
        ...

    def finish(self, exit_status: int, summary: Mapping[str, Any]) -> None:
        """The run is over; `exit_status` as the process will return it, `summary` as in summary.json."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """What summary.json says of this tracker under its name, or nothing."""
        ...


class NullTracker:
    """Follows nothing: the record in the run folder is all there is."""

    def __init__(self, identity: RunIdentity, num_updates: int) -> None:
        del identity, num_updates

    def log(self, row: Mapping[str, float]) -> None: ...

    def image(self, key: str, path: Path) -> None: ...

    def histograms(self, num_updates: int, histograms: Mapping[str, Histogram]) -> None: ...

    def file(self, path: Path) -> None: ...

    def checkpoint(self, path: Path) -> None: ...

    def finish(self, exit_status: int, summary: Mapping[str, Any]) -> None: ...

    def describe(self) -> Mapping[str, Any]:
        return {}
