"""Medians over blocks of updates, with bootstrap intervals."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

_NUM_DRAWS = 2000


class Interval(NamedTuple):
    """A median and its 95 % bootstrap interval over blocks (percentiles of 2,000 resamples)."""

    median: float
    low: float
    high: float


def interval(values: Sequence[float]) -> Interval:
    """Return the median of the blocks' values and its interval.

    >>> interval([1.0, 2.0, 3.0])
    Interval(median=2.0, low=1.0, high=3.0)
    """
    rng = random.Random(0)
    medians = sorted(median(rng.choices(values, k=len(values))) for _ in range(_NUM_DRAWS))
    return Interval(median(values), medians[int(0.025 * _NUM_DRAWS)], medians[int(0.975 * _NUM_DRAWS)])


def paired(
    first: Sequence[float], second: Sequence[float], compare: Callable[[float, float], float]
) -> Interval:
    """Return the interval of `compare(a, b)`, such as a ratio, over the values of two contenders block by block."""
    return interval([compare(a, b) for a, b in zip(first, second, strict=True)])
