"""A test of paired differences that may be looked at after every pair, with the error held for all looks together.

The mixture sequential t-test. With effect sizes `mean / std` that are normal with variance `EFFECT_VARIANCE` under the
alternative and Haar's prior for the standard deviation, the likelihood ratio of n differences depends only on their t
statistic (Gonen et al., "The Bayesian two-sample t test", 2005). Under the null it is a nonnegative martingale with
mean 1 for any standard deviation (Perez-Ortiz et al., "E-statistics, group invariance and anytime-valid testing", 2024;
Wang & Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance", 2025), so by
Ville's inequality it ever reaches 1 / alpha with a probability of at most alpha.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

from hydrant.config.metric_keys import UNBOUNDED
from hydrant.extensions.study.records import Interval

EFFECT_VARIANCE = 2.0
"""The test is valid for any value, and about as fast between 0.5 and 10. Larger values favour large effects with few
pairs."""

_ROUNDING = 1e-6
"""The relative distance up to which differences of float32 metrics count as equal."""


MAX_PAIRS = 1_000
"""The most pairs of which it is computed how much they find."""

_NUM_SIMULATED = 2_000


def estimate(
    differences: Sequence[float],
    alpha: float,
    sizes: Sequence[float] = (),
    ends: tuple[float, float] = UNBOUNDED,
) -> Interval:
    """Return the estimate after the last of one or more pairs.

    With a probability of at least `1 - alpha`, the intervals after every pair hold the true mean, if the differences
    are independent and normal. So an interval may decide when to stop.

    Args:
        differences: one for each pair, in their order.
        alpha: the probability of an error, such as 0.05.
        sizes: the larger absolute metric of each pair; differences that are equal up to its rounding bound nothing.
        ends: the smallest and the largest mean that is possible; the interval is cut there.

    >>> found = estimate([0.1, 0.12, 0.09, 0.11, 0.1], 0.05)
    >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3)
    (0.104, 0.074, 0.134)
    """
    num = len(differences)
    mean, std = math.fsum(differences) / num, spread(differences)
    rounding = _ROUNDING * max(sizes, default=0.0)
    half = math.inf if max(differences) - min(differences) <= rounding else _half_width(std, num, alpha)
    bounds = (None, None) if math.isinf(half) else (max(mean - half, ends[0]), min(mean + half, ends[1]))
    return Interval(num, mean, *bounds)


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample, with n - 1 in the denominator; 0 for one value."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1))


def min_pairs(alpha: float) -> int:
    """Return the smallest number of pairs that can decide, however large the effect.

    >>> min_pairs(0.05), min_pairs(0.05 / 11)
    (4, 6)
    """
    return next(num for num in range(2, MAX_PAIRS) if not math.isinf(_half_width(1.0, num, alpha)))


@cache
def pairs_needed(effect: float, alpha: float, power: float) -> int | None:
    """Return with how many pairs the test finds a true effect `mean / std` with this probability; None: over 1,000.

    Of 2,000 simulated sequences, whose random numbers are always the same.
    """
    return _needed(effect, alpha, power, MAX_PAIRS)


@cache
def detectable_effect(num_pairs: int, alpha: float, power: float) -> float | None:
    """Return the smallest effect that so many pairs find with this probability; None if they find none.

    >>> round(detectable_effect(20, 0.05, 0.8), 1)
    0.9
    """
    low, high = 0.01, 100.0
    if _needed(high, alpha, power, num_pairs) is None:
        return None
    for _ in range(14):
        middle = math.sqrt(low * high)
        is_found = _needed(middle, alpha, power, num_pairs) is not None
        low, high = (low, middle) if is_found else (middle, high)
    return high


def _needed(effect: float, alpha: float, power: float, max_pairs: int) -> int | None:
    """Return after how many pairs this share of simulated sequences shows that the effect is above 0."""
    import numpy as np

    num = np.arange(1, max_pairs + 1)
    gaps = _noise()[:, :max_pairs] + effect
    means = np.cumsum(gaps, axis=1) / num
    squares = np.maximum(np.cumsum(gaps**2, axis=1) - num * means**2, 1e-300)
    limits = np.array([_half_width(1.0, int(n), alpha) for n in num])  # in standard deviations
    stds = np.sqrt(squares / np.maximum(num - 1, 1))
    is_clear = means > np.where(np.isinf(limits), np.inf, limits * stds)
    is_known = np.logical_or.accumulate(is_clear, axis=1).mean(axis=0) >= power
    return int(is_known.argmax()) + 1 if is_known.any() else None


@cache
def _noise() -> Any:
    import numpy as np

    return np.random.default_rng(0).normal(size=(_NUM_SIMULATED, MAX_PAIRS))


def _half_width(std: float, num: int, alpha: float) -> float:
    """Return the largest distance from the mean at which the likelihood ratio stays below 1 / alpha."""
    growth = 1 + num * EFFECT_VARIANCE
    if num == 1 or std == 0.0:
        return math.inf
    limit = math.exp(2 / num * (math.log(growth) / 2 - math.log(alpha)))
    if limit >= growth:
        return math.inf
    return std * math.sqrt((num - 1) * (limit - 1) / (1 - limit / growth) / num)
