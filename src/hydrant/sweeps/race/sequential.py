"""A test of paired differences that may be looked at after every pair, with the error held for all looks together.

The mixture sequential t-test. With effect sizes `mean / std` that are normal with variance `EFFECT_VARIANCE` under the
alternative and Haar's prior for the standard deviation, the likelihood ratio of n differences depends only on their t
statistic (Gonen et al., "The Bayesian two-sample t test", 2005). Under the null it is a nonnegative martingale with
mean 1 for any standard deviation (Perez-Ortiz et al., "E-statistics, group invariance and anytime-valid testing", 2024;
Wang & Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance", 2025), so by
Ville's inequality it ever reaches 1 / alpha with a probability of at most alpha.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

EFFECT_VARIANCE = 2.0
"""The test is valid for any value, and about as fast between 0.5 and 10. Larger values favour large effects with few
pairs."""

_ROUNDING = 1e-6
"""The relative distance up to which differences of float32 metrics count as equal."""


@dataclass(frozen=True)
class Estimate:
    """The mean of paired differences and its interval, which holds after every pair at once; None: not yet bounded."""

    num_pairs: int
    mean: float
    low: float | None
    high: float | None


def confidence_sequence(
    differences: Sequence[float], alpha: float, sizes: Sequence[float] = ()
) -> list[Estimate]:
    """Return the estimate after each pair.

    With a probability of at least `1 - alpha`, all intervals hold the true mean, if the differences are independent and
    normal. So an interval may decide when to stop.

    Args:
        differences: one for each pair, in their order.
        alpha: the probability of an error, such as 0.05.
        sizes: the larger absolute metric of each pair; differences that are equal up to its rounding bound nothing.

    >>> [estimate] = confidence_sequence([0.1, 0.12, 0.09, 0.11, 0.1], 0.05)[-1:]
    >>> round(estimate.mean, 3), round(estimate.low, 3), round(estimate.high, 3)
    (0.104, 0.074, 0.134)
    """
    estimates: list[Estimate] = []
    for num in range(1, len(differences) + 1):
        seen = differences[:num]
        mean = math.fsum(seen) / num
        std = math.sqrt(math.fsum((value - mean) ** 2 for value in seen) / max(num - 1, 1))
        rounding = _ROUNDING * max(sizes[:num], default=0.0)
        half = math.inf if max(seen) - min(seen) <= rounding else _half_width(std, num, alpha)
        bounds = (None, None) if math.isinf(half) else (mean - half, mean + half)
        estimates.append(Estimate(num, mean, *bounds))
    return estimates


def _half_width(std: float, num: int, alpha: float) -> float:
    """Return the largest distance from the mean at which the likelihood ratio stays below 1 / alpha."""
    spread = 1 + num * EFFECT_VARIANCE
    limit = (math.sqrt(spread) / alpha) ** (2 / num)
    if std == 0.0 or limit >= spread:
        return math.inf
    return std * math.sqrt((num - 1) * (limit - 1) / (1 - limit / spread) / num)
