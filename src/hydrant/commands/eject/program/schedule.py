"""What sets the scheduled fields of the optimizer, besides the curves, which are copied from `hydrant.schedules`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from hydrant.commands.eject.program.parts import SCHEDULES, make_scheduler, make_stepped_optimizer
from hydrant.commands.eject.program.settings import *
from hydrant.schedules.base import Curve


def set_schedules(optimizer: Any, update: int) -> dict[str, float]:
    """Set the scheduled fields of the optimizer for an update; return them as they are logged."""
    row = dict[str, float]()
    for name, group, field, base, schedule in SCHEDULES:
        settings = optimizer.param_groups[group]
        row[name] = float(base * schedule(update))
        if SETS_ENTRIES and isinstance(field, tuple):  # an entry of a tuple
            field, position = field
            settings[field] = (*settings[field][:position], row[name], *settings[field][position + 1 :])
        else:
            settings[field] = row[name]
    return row


@dataclass(frozen=True)
class Interval:
    """Multiples of a number of updates, each rounded to a whole update by `rounded`."""

    length: int | Fraction
    rounded: Callable[[Any], int]

    def multiple(self, number: int) -> int:
        """Return the update of a multiple."""
        return self.rounded(number * self.length)

    def count(self, num_updates: int) -> int:
        """Return how many multiples lie in the first `num_updates` updates."""
        below = num_updates // self.length
        return below + (self.multiple(below + 1) <= num_updates)  # the next one may be rounded down

    def round(self, updates: int | Fraction) -> int:
        """Return a number of updates, rounded as a multiple is."""
        return self.rounded(updates)


@functools.cache
def stepped_settings() -> list[dict[str, Any]]:
    """Return what the scheduler sets before each update, found with an optimizer that trains nothing."""
    optimizer = make_stepped_optimizer()
    scheduler, settings = make_scheduler(), list[dict[str, Any]]()
    for update in range(NUM_UPDATES):
        if update > 0 and update % EVERY == 0:
            if NEEDS_CLOSURE:
                optimizer.step(lambda: torch.zeros(()))
            else:
                optimizer.step()
            scheduler.step()
        settings.append({field: optimizer.param_groups[0][field] for field in FIELDS})
    return settings


def stepped(field: str, position: int | None) -> Curve:
    """Return the values of a field, or of an entry of a tuple, in each update."""

    def value(update: int) -> float:
        setting = stepped_settings()[update][field]
        return setting if position is None else setting[position]

    return value
