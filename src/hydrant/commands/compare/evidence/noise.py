"""The scatter of results over seeds: standard deviations with chi-square intervals, of one group and pooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from hydrant.commands.compare.statistics import CONFIDENCE, are_equal


@dataclass(frozen=True)
class Spread:
    """A standard deviation, its degrees of freedom, and its confidence interval. Undefined values are None."""

    num: int  # of values
    degrees: int  # values minus groups
    std: float | None
    low: float | None
    high: float | None


def spread(samples: Sequence[Sequence[float]]) -> Spread:
    """Return the standard deviation within samples, pooled, with its interval for normal values of equal variance.

    `std**2` is the sum of squared distances from the means of the samples, divided by the degrees of freedom; that
    ratio times the degrees over the true variance is chi-square distributed.

    >>> within = spread([[1.0, 2.0, 3.0], [5.0, 7.0]])
    >>> within.degrees, round(within.std, 4), round(within.low, 4), round(within.high, 4)
    (3, 1.1547, 0.6541, 4.3054)
    >>> spread([[1.0], [2.0]]).std is None
    True
    """
    counted = [sample for sample in samples if len(sample) > 1]
    num, degrees = sum(map(len, counted)), sum(len(sample) - 1 for sample in counted)
    if degrees == 0:
        return Spread(num, 0, None, None, None)
    if all(are_equal(sample, sample) for sample in counted):
        return Spread(num, degrees, 0.0, None, None)
    return _of_squares(num, degrees, sum(float(np.var(sample)) * len(sample) for sample in counted))


def paired_spread(table: Sequence[Sequence[float]]) -> Spread:
    """Return the standard deviation of the difference of two groups with the same seed.

    The residuals without the effects of group and seed (a two-way analysis of variance without repetition) have the
    variance of one result. A difference has twice that variance. For two groups it is the standard deviation of their
    differences.

    Args:
        table: the results, (groups, seeds); two or more of both.

    >>> paired_spread([[1.0, 2.0, 3.0], [2.0, 2.0, 5.0]]).std  # the differences are 1, 0 and 2
    1.0
    """
    results = np.asarray(table, dtype=float)
    num_groups, num_seeds = results.shape
    degrees = (num_groups - 1) * (num_seeds - 1)
    rest = results - results.mean(axis=0) - results.mean(axis=1, keepdims=True) + results.mean()
    if are_equal(rest, [*results.flat]):
        return Spread(results.size, degrees, 0.0, None, None)
    return _of_squares(results.size, degrees, 2 * float(np.sum(rest**2)))


def _of_squares(num: int, degrees: int, squares: float) -> Spread:
    """Return the spread of values with this sum of squared distances from their means."""
    tail = (1 - CONFIDENCE) / 2
    low, high = (float((squares / stats.chi2.ppf(q, degrees)) ** 0.5) for q in (1 - tail, tail))
    return Spread(num, degrees, (squares / degrees) ** 0.5, low, high)


def bartlett(samples: Sequence[Sequence[float]]) -> float | None:
    """Return the p-value of Bartlett's test (1937) that samples have the same variance; None if it is undefined."""
    counted = [sample for sample in samples if len(sample) > 1]
    if len(counted) < 2 or any(are_equal(sample, sample) for sample in counted):
        return None
    return float(stats.bartlett(*counted).pvalue)
