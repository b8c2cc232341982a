"""Statistics of small samples: means, tests with Holm's correction, power, scatter, basins, the expected best of n.

The expected best of n trials is that of Dodge et al., "Show Your Work", 2019, section 3.1; the power of two-sided
t-tests is by the noncentral t distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from scipy import special

from hydrant.terminal.text import format_metric

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
        half = -float(special.stdtrit(self.degrees, tail)) * self.error
        return self.mean - half, self.mean + half

    def at_once(self, num_comparisons: int, *, is_shown: bool) -> Difference:
        """Return the difference with the interval that holds with those of all comparisons.

        Holm's test rejects more than this interval. Where it has shown the difference, the interval ends at 0
        (Guilbaud, "Simultaneous confidence regions corresponding to Holm's step-down procedure", 2008).
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
    half = float(special.stdtrit(num - 1, (1 + CONFIDENCE) / 2)) * std / num**0.5
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

    >>> gap = unpaired([3.0, 4.0, 5.0], [1.0, 2.0])
    >>> gap.mean, round(gap.error, 4), gap.degrees
    (2.5, 0.7638, 1)
    """
    first, second = estimate(values), estimate(baseline)
    mean = None if first.mean is None or second.mean is None else first.mean - second.mean
    if mean is None or first.std is None or second.std is None or not first.std + second.std > 0:
        return Difference(0, mean, None, None, None)
    squares = [one.std**2 * (1 / one.num + overlap) for one in (first, second) if one.std is not None]
    return _tested(0, mean, sum(squares) ** 0.5, min(first.num, second.num) - 1)


def _tested(num_pairs: int, mean: float, error: float, degrees: int) -> Difference:
    mean = 0.0 if abs(mean) < _ROUNDING * error else mean
    p = 2 * float(special.stdtr(degrees, -abs(mean) / error))
    return Difference(num_pairs, mean, None, None, p, None, error, degrees).at_once(1, is_shown=False)


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


Tested = TypeVar("Tested", "Difference", "TargetTest")


def corrected(tests: Sequence[Tested], factor: int = 1) -> list[Tested]:
    """Return tests with p-values that are corrected for all of them, each of which counts so often."""
    ps = iter(holm([test.p for test in tests if test.p is not None]))
    return [test if test.p is None else replace(test, p_holm=min(1.0, factor * next(ps))) for test in tests]


NUM_RESAMPLES = 2000


@dataclass(frozen=True)
class BestOfN:
    """The expected best of 1, 2, ... trials, with a bootstrap interval over the trials; None for one trial."""

    expected: Sequence[float]
    low: Sequence[float] | None
    high: Sequence[float] | None


def best_of_n(values: Sequence[float], mode: str, num: int | None = None) -> BestOfN:
    """Return the expected best of 1 to `num` trials that are drawn, with replacement, from these trials.

    With the sorted values v(1) to v(N), v(N) the best, the best of n is v(i) with probability (i/N)^n - ((i-1)/N)^n.
    The interval has the percentiles of this curve over samples of N trials, drawn with replacement. Draws repeat
    trials, so the curve underestimates where n is near N (Tang et al., "Showing Your Work Doesn't Always Work", 2020).

    >>> [round(value, 4) for value in best_of_n([3.0, 1.0, 2.0], "min").expected]
    [2.0, 1.5556, 1.3333]
    """
    sign = 1.0 if mode == "max" else -1.0
    trials = sign * np.asarray(values, dtype=float)
    weights = _weights(len(trials), num or len(trials))
    expected = sign * (weights @ np.sort(trials))
    if len(trials) == 1:
        return BestOfN(expected.tolist(), None, None)
    draws = np.random.default_rng(0).choice(trials, (NUM_RESAMPLES, len(trials)))
    curves = sign * (np.sort(draws, axis=1) @ weights.T)  # (resamples, n)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(curves, [tail, 100 - tail], axis=0)
    return BestOfN(expected.tolist(), low.tolist(), high.tolist())


def _weights(num_trials: int, num: int) -> npt.NDArray[np.float64]:
    """Return the probability that the i-th value is the best of n, (n, i)."""
    shares = np.arange(num_trials + 1) / num_trials
    return np.diff(shares[None, :] ** np.arange(1, num + 1)[:, None], axis=1)


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
    sample = estimate(values, bounds)
    num, mean, std, low, high = sample.num, sample.mean, sample.std, sample.low, sample.high
    if mean is None:
        return TargetTest(0, None, None, None, None, None, None)
    margin = target - mean if mode == "min" else mean - target
    statistic = margin * math.sqrt(num)
    p = float(special.stdtr(num - 1, -statistic / std)) if std else None
    if sigma is not None:
        half = float(special.ndtri((1 + CONFIDENCE) / 2)) * sigma / math.sqrt(num)
        low, high = max(mean - half, bounds[0]), min(mean + half, bounds[1])
        p = float(special.ndtr(-statistic / sigma))
    return TargetTest(num, mean, low, high, margin, statistic, p)


@dataclass(frozen=True)
class Basin:
    """The best learning rate and its basin. It may be wider at an open end, which is the last rate that was tried."""

    best_lr: float
    best: float
    low: float
    high: float
    is_low_open: bool
    is_high_open: bool
    factor: float  # the width: the largest learning rate of the basin over the smallest


def find_basin(
    lrs: Sequence[float], results: Sequence[float | None], tolerance: float, mode: str
) -> Basin | None:
    """Return the basin around the best mean result; None without any result.

    The curve is linear in log(lr) between the tried learning rates. A rate without a result (None), because a run
    diverged there, is outside, and so is everything beyond the neighbour that has one.

    Args:
        lrs: in ascending order.
        results: the mean at each of them.
        tolerance: by how much a result may be worse than the best.

    >>> basin = find_basin([0.01, 0.1, 1.0], [0.3, 0.1, 0.2], 0.1, "min")
    >>> basin.best_lr, round(basin.low, 4), basin.high, round(basin.factor, 1)
    (0.1, 0.0316, 1.0, 31.6)
    >>> basin.is_low_open, basin.is_high_open
    (False, True)
    """
    losses = [math.inf if value is None else value if mode == "min" else -value for value in results]
    best = min(range(len(losses)), key=losses.__getitem__, default=None)
    if best is None or math.isinf(losses[best]):
        return None
    limit = losses[best] + tolerance
    low, is_low_open = _end(lrs[best::-1], losses[best::-1], limit)
    high, is_high_open = _end(lrs[best:], losses[best:], limit)
    value = losses[best] if mode == "min" else -losses[best]
    return Basin(lrs[best], value, low, high, is_low_open, is_high_open, high / low)


def _end(lrs: Sequence[float], losses: Sequence[float], limit: float) -> tuple[float, bool]:
    """Return where the losses, from the best one on, first exceed the limit, and whether they never do."""
    for n in range(1, len(lrs)):
        if losses[n] > limit:
            if math.isinf(losses[n]):
                return lrs[n - 1], False
            share = (limit - losses[n - 1]) / (losses[n] - losses[n - 1])
            return lrs[n - 1] * (lrs[n] / lrs[n - 1]) ** share, False
    return lrs[-1], True


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
    low, high = (float((squares / special.chdtri(degrees, q)) ** 0.5) for q in (tail, 1 - tail))
    return Spread(num, degrees, (squares / degrees) ** 0.5, low, high)


def bartlett(samples: Sequence[Sequence[float]]) -> float | None:
    """Return the p-value of Bartlett's test (1937) that samples have the same variance; None if it is undefined."""
    counted = [sample for sample in samples if len(sample) > 1]
    if len(counted) < 2 or any(are_equal(sample, sample) for sample in counted):
        return None
    degrees, variances = np.array([(len(sample) - 1, np.var(sample, ddof=1)) for sample in counted]).T
    num, total = len(counted) - 1, degrees.sum()
    gap = total * np.log(degrees @ variances / total) - degrees @ np.log(variances)  # rounded, maybe below 0
    return float(special.chdtrc(num, max(gap, 0.0) / (1 + ((1 / degrees).sum() - 1 / total) / (3 * num))))


POWER = 0.8
SIGNIFICANCE = 0.05
MAX_SEEDS = 10_000


def power(difference: float, std: float, num_seeds: int, num_comparisons: int = 1) -> float:
    """Return the probability that the t-test of a comparison finds a true difference.

    Args:
        difference: of the means, in units of the metric.
        std: of the difference of two results; without pairs, sqrt(2) times that of the results of either group. The
            test without pairs has as many degrees of freedom: see `unpaired`.
        num_seeds: of each group; two or more.
        num_comparisons: for which the test at 5 % is corrected (Bonferroni).

    >>> round(power(1.0, 1.0, 10), 3), round(power(1.0, 1.0, 10, num_comparisons=2), 3)
    (0.803, 0.682)
    """
    degrees = num_seeds - 1
    shift = abs(difference) / std * math.sqrt(num_seeds)
    critical = -float(special.stdtrit(degrees, SIGNIFICANCE / num_comparisons / 2))
    of_signs = special.nctdtr(degrees, [-shift, shift], -critical)
    # scipy has no value in the far tail, where the other sign is impossible or this one certain.
    return float(np.where(np.isnan(of_signs), [1.0, 0.0], of_signs).sum())


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


def signed(value: float | None) -> str:
    return "-" if value is None else format_metric(value, sign="+" if value else "")


def corrected_for(num_comparisons: int) -> str:
    """Return the end of a phrase about a test or an interval; "" if there is one comparison.

    >>> corrected_for(2), corrected_for(1)
    (', corrected for 2 comparisons', '')
    """
    return f", corrected for {num_comparisons} comparisons" if num_comparisons > 1 else ""


def looks_text(num_looks: int) -> str:
    """Return what earlier looks at results cost."""
    cost = f"each comparison counts {num_looks**2} times"
    return f"Seeds came after results, so this is look {num_looks} at them: {cost}."


def p_value(value: float | None) -> str:
    return "-" if value is None else "<0.001" if value < 0.001 else f"{value:.3f}"
