"""The seeds that a difference needs: the power of two-sided t-tests, by the noncentral t distribution."""

from __future__ import annotations

import math
from typing import Any

from scipy import optimize, stats

POWER = 0.8
SIGNIFICANCE = 0.05
MAX_SEEDS = 10_000


def power(difference: float, std: float, num_seeds: int, num_comparisons: int = 1) -> float:
    """Return the probability that the t-test of a comparison finds a true difference.

    Args:
        difference: of the means, in units of the metric.
        std: of the difference of two results; without pairs, sqrt(2) times that of the results of either group. The
            test without pairs has as many degrees of freedom: see `statistics.unpaired`.
        num_seeds: of each group; two or more.
        num_comparisons: for which the test at 5 % is corrected (Bonferroni).

    >>> round(power(1.0, 1.0, 10), 3), round(power(1.0, 1.0, 10, num_comparisons=2), 3)
    (0.803, 0.682)
    """
    degrees = num_seeds - 1
    shift = abs(difference) / std * math.sqrt(num_seeds)
    critical = float(stats.t.isf(SIGNIFICANCE / num_comparisons / 2, degrees))
    same_sign, other_sign = (float(stats.nct.sf(critical, degrees, sign * shift)) for sign in (1, -1))
    # scipy has no value in the far tail, where the other sign is impossible or this one certain.
    return (1.0 if math.isnan(same_sign) else same_sign) + (0.0 if math.isnan(other_sign) else other_sign)


def seeds_needed(difference: float, std: float, num_comparisons: int = 1) -> int | None:
    """Return the smallest number of seeds with a power of 80 %; None if it is above 10,000.

    >>> seeds_needed(1.0, 1.0), seeds_needed(1.0, 2**0.5)
    (10, 18)
    """

    def are_enough(num: int) -> bool:
        return power(difference, std, num, num_comparisons) >= POWER

    if not are_enough(MAX_SEEDS):
        return None
    low, high = 1, 2  # the power grows with the number of seeds
    while not are_enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if are_enough(middle) else (middle, high)
    return high


def detectable_difference(std: float, num_seeds: int, num_comparisons: int = 1) -> float:
    """Return the true difference that so many seeds find with a power of 80 %.

    >>> round(detectable_difference(1.0, 10), 3)
    0.996
    """

    def shortfall(ratio: float) -> float:
        return power(ratio, 1.0, num_seeds, num_comparisons) - POWER

    # two pairs need 11.5 standard deviations, times the number of comparisons
    ratio: Any = optimize.brentq(shortfall, 1e-9, 100.0 * num_comparisons)
    return std * float(ratio)
