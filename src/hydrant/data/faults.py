"""Damaged samples: what is done about them, and what is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hydrant.logs import log

MAX_DAMAGED_IN_A_ROW = 100
"""So many neighbours are no few damaged files, but a folder that is gone or a transform that fails."""


@dataclass
class Faults:
    """Whether damaged samples end a run or are skipped, and which were met in this process."""

    skips: bool = False
    remedy: str = ""  # what an error that ends the run says at its end
    _damaged: set[str] = field(default_factory=set[str])

    @property
    def num_damaged(self) -> int:
        return len(self._damaged)

    def note(self, damaged: Mapping[str, str]) -> None:
        """Tell of each skipped sample once."""
        for name, told in damaged.items():
            if name not in self._damaged:
                self._damaged.add(name)
                log.warning("skipped: %s", told)
