"""Tests of the mean of a group against a fixed value: Student's t, or a z-test where the noise is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import stats

from hydrant.commands.compare.statistics import CONFIDENCE, UNBOUNDED, Bounds, estimate


@dataclass(frozen=True)
class TargetTest:
    """The distance of a mean from a target, and the one-sided p-value that the true mean does not reach it."""

    num: int
    mean: float | None
    low: float | None  # of the interval of the mean
    high: float | None
    margin: float | None  # by how much the mean is better than the target
    statistic: float | None  # margin * sqrt(num)
    p: float | None
    p_holm: float | None = None  # corrected for the number of groups


def beats_target(
    values: Sequence[float], target: float, mode: str, sigma: float | None = None, bounds: Bounds = UNBOUNDED
) -> TargetTest:
    """Test whether the true mean is better than a target, one-sided. `sigma`: the known standard deviation of a run.

    Without `sigma` it is a t-test, which needs two different results; with it a z-test, which needs one. For
    `target=3.28`, `sigma=0.0013` and `mode="min"` the statistic is that of track 3 of modded-nanogpt, whose rule is
    `(3.28 - mean) * sqrt(num) >= 0.004`.

    >>> test = beats_target([3.2785, 3.2789, 3.2787], 3.28, "min", sigma=0.0013)
    >>> round(test.statistic, 5), round(test.p, 3)
    (0.00225, 0.042)
    """
    found = estimate(values, bounds)
    num, mean, std, low, high = found.num, found.mean, found.std, found.low, found.high
    if mean is None:
        return TargetTest(0, None, None, None, None, None, None)
    margin = target - mean if mode == "min" else mean - target
    statistic = margin * math.sqrt(num)
    p = float(stats.t.sf(statistic / std, num - 1)) if std else None
    if sigma is not None:
        half = float(stats.norm.ppf((1 + CONFIDENCE) / 2)) * sigma / math.sqrt(num)
        low, high = max(mean - half, bounds[0]), min(mean + half, bounds[1])
        p = float(stats.norm.sf(statistic / sigma))
    return TargetTest(num, mean, low, high, margin, statistic, p)
