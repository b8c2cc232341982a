"""Statistics of small samples: means with confidence intervals, t-tests, Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import stats

CONFIDENCE = 0.95

Bounds = tuple[float, float]
"""The smallest and the largest value that a metric can have."""

UNBOUNDED: Bounds = (-math.inf, math.inf)

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
    """The difference of two means, its confidence interval, and the p-value of its t-test. Without a test, None."""

    num_pairs: int  # 0: without pairs
    mean: float | None
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None = None  # corrected for the number of comparisons (Holm)
    error: float | None = None  # the standard error of the mean
    degrees: int | None = None  # of freedom of this error

    def interval(self, num_comparisons: int = 1) -> tuple[float, float] | None:
        """Return the interval that holds with those of all comparisons at once (Bonferroni)."""
        if self.mean is None or self.error is None:
            return None
        tail = (1 - CONFIDENCE) / 2 / num_comparisons
        half = float(stats.t.isf(tail, self.degrees)) * self.error
        return self.mean - half, self.mean + half

    def at_once(self, num_comparisons: int, *, is_shown: bool) -> Difference:
        """Return the difference with the interval that holds with those of all comparisons.

        Where Holm's test, which rejects more than this interval, has shown the difference, the interval ends at 0, as
        those of Guilbaud, "Simultaneous confidence regions corresponding to Holm's step-down procedure", 2008.
        """
        low, high = self.interval(num_comparisons) or (None, None)
        if is_shown and low is not None and high is not None:
            low, high = (max(low, 0.0), high) if (self.mean or 0.0) > 0 else (low, min(high, 0.0))
        return replace(self, low=low, high=high)

    def negated(self) -> Difference:
        """Return the difference of the two in the other order."""
        mean, low, high = (None if value is None else -value for value in (self.mean, self.high, self.low))
        return replace(self, mean=mean, low=low, high=high)


def estimate(values: Sequence[float], bounds: Bounds = UNBOUNDED) -> Estimate:
    """Return the mean of a sample with its confidence interval, and its other statistics.

    The interval is cut at the bounds. It contains the true mean as often as before, because that lies between them.

    >>> round(estimate([1.0, 2.0, 3.0]).low, 4), estimate([1.0, 2.0, 3.0], (0.0, 9.0)).low, estimate([2.0]).low
    (-0.4841, 0.0, None)
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
    return Estimate(num, mean, std, max(mean - half, bounds[0]), min(mean + half, bounds[1]), median)


def paired(values: Sequence[float], baseline: Sequence[float], overlap: float = 0.0) -> Difference:
    """Return the paired difference of two samples of the same length. Equal differences have no p-value.

    Args:
        overlap: for folds and random splits, the validation samples of one for each of its training samples. They share
            training samples, so their differences scatter too little; this corrects it (Nadeau and Bengio, 2003).
    """
    gaps = np.subtract(values, baseline)
    gap = estimate(gaps.tolist())
    if gap.std is None or gap.mean is None or are_equal(gaps, [*values, *baseline]):
        return Difference(gap.num, gap.mean, None, None, None)
    return _tested(gap.num, gap.mean, gap.std * (1 / gap.num + overlap) ** 0.5, gap.num - 1)


def unpaired(values: Sequence[float], baseline: Sequence[float], overlap: float = 0.0) -> Difference:
    """Return the difference of two samples without pairs: Welch's t with the degrees of freedom of the smaller one.

    Welch's own degrees are an estimate: for 2 and 10 results of equal scatter it errs in 10 of 100 tests, not in 5.
    Those of the smaller sample never err more often than they say (Mickey and Brown, 1966).

    Args:
        overlap: as for pairs. The folds or splits of each sample share training samples too.

    >>> found = unpaired([3.0, 4.0, 5.0], [1.0, 2.0])
    >>> found.mean, round(found.error, 4), found.degrees
    (2.5, 0.7638, 1)
    """
    first, second = estimate(values), estimate(baseline)
    mean = None if first.mean is None or second.mean is None else first.mean - second.mean
    if mean is None or first.std is None or second.std is None or not first.std + second.std > 0:
        return Difference(0, mean, None, None, None)
    squares = [one.std**2 * (1 / one.num + overlap) for one in (first, second) if one.std is not None]
    return _tested(0, mean, sum(squares) ** 0.5, min(first.num, second.num) - 1)


def _tested(num_pairs: int, mean: float, error: float, degrees: int) -> Difference:
    p = 2 * float(stats.t.sf(abs(mean) / error, degrees))
    found = Difference(num_pairs, mean, None, None, p, error=error, degrees=degrees)
    low, high = found.interval() or (None, None)
    return replace(found, low=low, high=high)


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
