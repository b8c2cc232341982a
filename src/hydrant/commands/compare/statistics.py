"""Statistics of small samples: means with confidence intervals, paired tests, Holm's correction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

CONFIDENCE = 0.95

_ROUNDING = 1e-6
"""The relative difference up to which float32 values count as equal."""


@dataclass(frozen=True)
class Estimate:
    """The statistics of a sample. Those that are undefined for one value, or for equal values, are None."""

    num: int
    mean: float | None
    std: float | None  # with n - 1 in the denominator
    low: float | None  # of the confidence interval of the mean: Student's t
    high: float | None
    median: float | None


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences, its confidence interval, and the p-value of the paired t-test."""

    num_pairs: int
    mean: float | None
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None = None  # corrected for the number of comparisons (Holm)


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of a sample with its confidence interval, and its other statistics.

    >>> round(estimate([1.0, 2.0, 3.0]).low, 4), estimate([2.0]).low
    (-0.4841, None)
    """
    num = len(values)
    if num == 0:
        return Estimate(0, None, None, None, None, None)
    mean, median = float(np.mean(values)), float(np.median(values))
    if num == 1:
        return Estimate(1, mean, None, None, None, median)
    if are_equal(values, values):
        return Estimate(num, mean, 0.0, None, None, median)
    std = float(np.std(values, ddof=1))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, num - 1)) * std / num**0.5
    return Estimate(num, mean, std, mean - half, mean + half, median)


def paired(values: Sequence[float], baseline: Sequence[float]) -> Difference:
    """Return the paired difference of two samples of the same length. Equal differences have no p-value."""
    gaps = np.subtract(values, baseline)
    gap = estimate(gaps.tolist())
    if gap.std is None or gap.mean is None or are_equal(gaps, [*values, *baseline]):
        return Difference(gap.num, gap.mean, None, None, None)
    p = 2 * float(stats.t.sf(abs(gap.mean) / (gap.std / gap.num**0.5), gap.num - 1))
    return Difference(gap.num, gap.mean, gap.low, gap.high, p)


def are_equal(values: npt.ArrayLike, computed_from: Sequence[float]) -> bool:
    """Return whether values are equal up to the rounding of the float32 values from which they were computed."""
    return bool(np.ptp(values) <= _ROUNDING * np.abs(computed_from).max())


def holm(p_values: Sequence[float]) -> list[float]:
    """Return corrected p-values that bound the probability of any false discovery among them (Holm, 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, greatest = [0.0] * len(p_values), 0.0
    for rank, idx in enumerate(sorted(range(len(p_values)), key=lambda n: p_values[n])):
        greatest = max(greatest, min(1.0, (len(p_values) - rank) * p_values[idx]))
        corrected[idx] = greatest
    return corrected
