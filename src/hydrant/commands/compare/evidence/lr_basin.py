"""The basin of a learning rate: the range around the best one whose results are as good up to a tolerance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Basin:
    """The best learning rate and its basin. It may be wider at an open end, which is the last rate that was tried."""

    best_lr: float
    best: float
    low: float
    high: float
    is_low_open: bool
    is_high_open: bool

    @property
    def factor(self) -> float:
        """The width: the largest learning rate of the basin over the smallest."""
        return self.high / self.low


def find_basin(
    lrs: Sequence[float], results: Sequence[float | None], tolerance: float, mode: str
) -> Basin | None:
    """Return the basin around the best mean result; None without any result.

    The curve is linear in log(lr) between the tried learning rates. A rate without a result (None), because a run
    diverged there, is outside, and so is everything beyond the neighbour that has one.

    Args:
        lrs: in ascending order.
        results: the mean at each of them.
        tolerance: by how much a result may be worse than the best.

    >>> basin = find_basin([0.01, 0.1, 1.0], [0.3, 0.1, 0.2], 0.1, "min")
    >>> basin.best_lr, round(basin.low, 4), basin.high, round(basin.factor, 1)
    (0.1, 0.0316, 1.0, 31.6)
    >>> basin.is_low_open, basin.is_high_open
    (False, True)
    """
    losses = [math.inf if value is None else value if mode == "min" else -value for value in results]
    best = min(range(len(losses)), key=losses.__getitem__, default=None)
    if best is None or math.isinf(losses[best]):
        return None
    limit = losses[best] + tolerance
    low, is_low_open = _end(lrs[best::-1], losses[best::-1], limit)
    high, is_high_open = _end(lrs[best:], losses[best:], limit)
    value = losses[best] if mode == "min" else -losses[best]
    return Basin(lrs[best], value, low, high, is_low_open, is_high_open)


def _end(lrs: Sequence[float], losses: Sequence[float], limit: float) -> tuple[float, bool]:
    """Return where the losses, from the best one on, first exceed the limit, and whether they never do."""
    for n in range(1, len(lrs)):
        if losses[n] > limit:
            if math.isinf(losses[n]):
                return lrs[n - 1], False
            share = (limit - losses[n - 1]) / (losses[n] - losses[n - 1])
            return lrs[n - 1] * (lrs[n] / lrs[n - 1]) ** share, False
    return lrs[-1], True
