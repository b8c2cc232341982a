"""What is due after which update."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from hydrant.clock import Cadence


class Due(NamedTuple):
    """What an update is followed by."""

    log: bool
    eval: bool
    save: bool
    histogram: bool


NOTHING = Due(log=False, eval=False, save=False, histogram=False)


@dataclass
class Agenda:
    """The cadences of a run.

    >>> agenda = Agenda(Cadence(2), Cadence(3), Cadence(None), Cadence(None))
    >>> agenda.due(1) is NOTHING, agenda.due(2).log, agenda.due(3).eval, agenda.due(4, is_last=True)
    (True, True, True, Due(log=True, eval=True, save=False, histogram=False))
    >>> never = Agenda(*[Cadence(None)] * 4)
    >>> never.due(1) is NOTHING, never.due(10**9) is NOTHING
    (True, True)
    """

    log_every: Cadence
    eval_every: Cadence
    save_every: Cadence
    histogram_every: Cadence
    _quiet: range = field(default=range(0), init=False)  # after these nothing is due

    def due(self, num_updates: int, *, is_last: bool = False) -> Due:
        """After `num_updates` completed ones; after the last one everything that is not due never."""
        if num_updates in self._quiet and not is_last:
            return NOTHING
        cadences = (self.log_every, self.eval_every, self.save_every, self.histogram_every)
        coming = [c.every - num_updates % c.every for c in cadences if c.every is not None]
        self._quiet = range(num_updates + 1, num_updates + min(coming, default=1 << 62))
        due = Due(*(c.every is not None and (is_last or c.due(num_updates)) for c in cadences))
        return due if any(due) else NOTHING
