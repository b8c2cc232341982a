"""What samples of a few seeds say: a mean with its interval, and paired differences with corrected p-values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

CONFIDENCE = 0.95

_ROUNDING = 1e-6
"""What float32 values differ by that would be equal but for rounding, of their size."""


@dataclass(frozen=True)
class Estimate:
    """A sample, summed up. What one value, or values without any spread, cannot tell is None."""

    num: int
    mean: float | None
    std: float | None  # with n - 1 in the denominator
    low: float | None  # of the confidence interval of the mean: Student's t
    high: float | None
    median: float | None


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences, and how likely it would be if there were none (t-test)."""

    num_pairs: int
    mean: float | None
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None = None  # corrected for the number of comparisons (Holm)


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of a sample with its confidence interval.

    >>> round(estimate([1.0, 2.0, 3.0]).low, 4), estimate([2.0]).low
    (-0.4841, None)
    """
    num = len(values)
    if num == 0:
        return Estimate(0, None, None, None, None, None)
    mean, median = float(np.mean(values)), float(np.median(values))
    if num == 1:
        return Estimate(1, mean, None, None, None, median)
    if _is_flat(values, values):
        return Estimate(num, mean, 0.0, None, None, median)
    std = float(np.std(values, ddof=1))
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, num - 1)) * std / num**0.5
    return Estimate(num, mean, std, mean - half, mean + half, median)


def paired(values: Sequence[float], baseline: Sequence[float]) -> Difference:
    """The differences of values that belong together; differences without any spread have no p-value."""
    gaps = np.subtract(values, baseline)
    found = estimate(gaps.tolist())
    if found.std is None or found.mean is None or _is_flat(gaps, [*values, *baseline]):
        return Difference(found.num, found.mean, None, None, None)
    p = 2 * float(stats.t.sf(abs(found.mean) / (found.std / found.num**0.5), found.num - 1))
    return Difference(found.num, found.mean, found.low, found.high, p)


def _is_flat(values: npt.ArrayLike, computed_from: Sequence[float]) -> bool:
    """Whether values differ by no more than the rounding of what they come from, which is logged in float32."""
    return bool(np.ptp(values) <= _ROUNDING * np.abs(computed_from).max())


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected so that the chance of any false discovery among them stays what it says (Holm, 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, greatest = [0.0] * len(p_values), 0.0
    for rank, idx in enumerate(sorted(range(len(p_values)), key=lambda n: p_values[n])):
        greatest = max(greatest, min(1.0, (len(p_values) - rank) * p_values[idx]))
        corrected[idx] = greatest
    return corrected
