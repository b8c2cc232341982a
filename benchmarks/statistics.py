"""Medians of blocks and their intervals."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

_NUM_DRAWS = 2000


class Interval(NamedTuple):
    """A median and its 95 % interval, by the bootstrap over blocks (percentiles of 2,000 draws)."""

    median: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Interval:
    """Of blocks: `Interval(median, low, high)`.

    >>> interval([1.0, 2.0, 3.0])
    Interval(median=2.0, low=1.0, high=3.0)
    """
    rng = random.Random(0)
    drawn = sorted(median(rng.choices(values, k=len(values))) for _ in range(_NUM_DRAWS))
    return Interval(median(values), drawn[int(0.025 * _NUM_DRAWS)], drawn[int(0.975 * _NUM_DRAWS)])


def paired(ours: Sequence[float], theirs: Sequence[float], of: Callable[[float, float], float]) -> Interval:
    """Of a figure of two contenders in the same block, such as their ratio."""
    return interval([of(own, other) for own, other in zip(ours, theirs, strict=True)])
