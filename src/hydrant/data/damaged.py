"""Damaged samples: whether they end a run, which were skipped, and the warnings about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from hydrant.errors import log

MAX_DAMAGED_IN_A_ROW = 100
"""This many damaged samples in a row mean that the folder is gone or that the transform fails."""


@dataclass
class DamagedSamples:
    """Whether damaged samples are skipped, and those that this process has skipped."""

    skip: bool = False
    remedy: str = ""  # the end of the error message where they are not skipped
    is_rank_zero: bool = True  # only rank 0 logs
    _messages: dict[str, str] = field(default_factory=dict[str, str])  # by name of the sample

    @property
    def num_damaged(self) -> int:
        return len(self._messages)

    def record(self, messages: Mapping[str, str]) -> None:
        """Record skipped samples, message by name. Rank 0 logs each of them once."""
        new = {name: message for name, message in messages.items() if name not in self._messages}
        self._messages |= new
        for message in new.values() if self.is_rank_zero else ():
            log.warning("skipped: %s", message)

    def merge_ranks(self, all_gather: Callable[[Mapping[str, str]], Sequence[Mapping[str, str]]]) -> None:
        """Record on rank 0 what the other ranks skipped. All ranks call it."""
        for messages in all_gather(self._messages) if self.skip else ():
            if self.is_rank_zero:
                self.record(messages)
