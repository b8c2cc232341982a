"""What a tracker is told about a run, and when."""

from __future__ import annotations

from collections.abc import Mapping
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

    def file(self, path: Path) -> None:
        """Any other file in the run folder that is to be kept with the run."""
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

    def file(self, path: Path) -> None: ...

    def finish(self, exit_status: int, summary: Mapping[str, Any]) -> None: ...

    def describe(self) -> Mapping[str, Any]:
        return {}
