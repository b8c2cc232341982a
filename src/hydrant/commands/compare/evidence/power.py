"""The seeds that a difference needs: the power of two-sided t-tests, by the noncentral t distribution."""

from __future__ import annotations

import math
from typing import Any

from scipy import optimize, stats

POWER = 0.8
SIGNIFICANCE = 0.05
MAX_SEEDS = 10_000


def power(
    difference: float, std: float, num_seeds: int, *, is_paired: bool, num_comparisons: int = 1
) -> float:
    """Return the probability that a two-sided t-test at 5 % finds a true difference.

    Args:
        difference: of the means, in units of the metric.
        std: of the differences of pairs if `is_paired`, else of the results of either group.
        num_seeds: pairs, or results of each group; two or more.
        num_comparisons: for which the test is corrected (Bonferroni).

    >>> round(power(1.0, 1.0, 10, is_paired=True), 3), round(power(1.0, 1.0, 10, is_paired=False), 3)
    (0.803, 0.562)
    """
    degrees = num_seeds - 1 if is_paired else 2 * num_seeds - 2
    shift = abs(difference) / std * math.sqrt(num_seeds if is_paired else num_seeds / 2)
    critical = float(stats.t.isf(SIGNIFICANCE / num_comparisons / 2, degrees))
    same_sign, other_sign = (float(stats.nct.sf(critical, degrees, sign * shift)) for sign in (1, -1))
    # scipy has no value in the far tail, where the other sign is impossible or this one certain.
    return (1.0 if math.isnan(same_sign) else same_sign) + (0.0 if math.isnan(other_sign) else other_sign)


def seeds_needed(difference: float, std: float, *, is_paired: bool, num_comparisons: int = 1) -> int | None:
    """Return the smallest number of seeds with a power of 80 %; None if it is above 10,000.

    >>> seeds_needed(1.0, 1.0, is_paired=True), seeds_needed(1.0, 1.0, is_paired=False)
    (10, 17)
    """

    def are_enough(num: int) -> bool:
        found = power(difference, std, num, is_paired=is_paired, num_comparisons=num_comparisons)
        return found >= POWER

    if not are_enough(MAX_SEEDS):
        return None
    low, high = 1, 2  # the power grows with the number of seeds
    while not are_enough(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if are_enough(middle) else (middle, high)
    return high


def detectable_difference(std: float, num_seeds: int, *, is_paired: bool) -> float:
    """Return the true difference that so many seeds find with a power of 80 %.

    >>> round(detectable_difference(1.0, 10, is_paired=True), 3)
    0.996
    """

    def shortfall(ratio: float) -> float:
        return power(ratio, 1.0, num_seeds, is_paired=is_paired) - POWER

    ratio: Any = optimize.brentq(shortfall, 1e-9, 100.0)  # two pairs need 11.5 standard deviations
    return std * float(ratio)
