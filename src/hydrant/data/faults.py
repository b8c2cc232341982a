"""Damaged samples: what is done about them, and what is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hydrant.distributed import World
from hydrant.logs import log

MAX_DAMAGED_IN_A_ROW = 100
"""So many neighbours are no few damaged files, but a folder that is gone or a transform that fails."""


@dataclass
class Faults:
    """Whether damaged samples end a run or are skipped, and which were met in this process."""

    skips: bool = False
    remedy: str = ""  # what an error that ends the run says at its end
    _damaged: dict[str, str] = field(default_factory=dict[str, str])  # name -> what was told of it

    @property
    def num_damaged(self) -> int:
        return len(self._damaged)

    def note(self, damaged: Mapping[str, str]) -> None:
        """Tell of each skipped sample once: rank 0 does, of those of other ranks when it gathers them."""
        new = {name: told for name, told in damaged.items() if name not in self._damaged}
        self._damaged |= new
        for told in new.values() if World.from_launcher().is_rank_zero else ():
            log.warning("skipped: %s", told)

    def gather(self, world: World) -> None:
        """Let rank 0 know, and tell, what the other ranks met."""
        for damaged in world.gather(self._damaged) if self.skips else ():
            if world.is_rank_zero:
                self.note(damaged)
