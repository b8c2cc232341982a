"""The sequential test keeps its level at every look, has power, and equals the likelihood ratio that defines it."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from marks import slow
from scipy import integrate, stats

from hydrant.extensions.study.records import Interval
from hydrant.extensions.study.verdict import EFFECT_VARIANCE, estimate


def confidence_sequence(gaps: Sequence[float], alpha: float, sizes: Sequence[float] = ()) -> list[Interval]:
    """Return the estimate after each pair."""
    return [estimate(gaps[:num], alpha, sizes[:num]) for num in range(1, len(gaps) + 1)]


def first_verdicts(effect: float, num_sequences: int, num_pairs: int, noise: str = "normal") -> np.ndarray:
    """Return after how many pairs each simulated sequence is decided; 0: never. The same formula."""
    generator = np.random.default_rng(0)
    shape = (num_sequences, num_pairs)
    draws = generator.normal(size=shape) if noise == "normal" else generator.uniform(-1, 1, shape) * 3**0.5
    gaps, n = draws + effect, np.arange(1, num_pairs + 1)
    means = np.cumsum(gaps, axis=1) / n
    squares = np.maximum(np.cumsum(gaps**2, axis=1) - n * means**2, 1e-300)
    spread, ratio = 1 + n * EFFECT_VARIANCE, n * means**2 / squares
    logs = n / 2 * (np.log1p(ratio) - np.log1p(ratio / spread)) - np.log(spread) / 2
    logs[:, 0] = 0.0
    clear = logs >= math.log(1 / 0.05)
    return np.where(clear.any(axis=1), clear.argmax(axis=1) + 1, 0)


def test_the_simulation_decides_as_the_confidence_sequence() -> None:
    expected = first_verdicts(0.8, 40, 30)
    draws = np.random.default_rng(0).normal(size=(40, 30)) + 0.8  # as `first_verdicts` draws them
    for gaps, decided in zip(draws.tolist(), expected.tolist(), strict=True):
        looks = confidence_sequence(gaps, 0.05)
        clear = [
            e.num_pairs
            for e in looks
            if e.low is not None and e.high is not None and not e.low <= 0 <= e.high
        ]
        assert (clear[0] if clear else 0) == decided


@pytest.mark.parametrize(("num_sequences", "num_pairs"), [(2000, 50), *slow((100_000, 200))])
@pytest.mark.parametrize("noise", ["normal", "uniform"])
def test_equal_settings_is_decided_in_at_most_5_of_100_cases(
    noise: str, num_sequences: int, num_pairs: int
) -> None:
    """Although every pair is looked at. A t-test at every look would be wrong far more often."""
    wrong = int((first_verdicts(0.0, num_sequences, num_pairs, noise) > 0).sum())
    assert wrong > 0
    assert stats.binom.sf(wrong, num_sequences, 0.05) > 0.5, "far below the level"
    if noise == "normal":
        gaps = np.random.default_rng(0).normal(size=(200, num_pairs))
        naive = [stats.ttest_1samp(gaps[:, :n], 0.0, axis=1).pvalue < 0.05 for n in range(2, num_pairs + 1)]
        assert np.any(naive, axis=0).mean() > 0.2


@pytest.mark.parametrize(
    ("effect", "within", "power"), [(1.0, 40, 0.95), (2.0, 20, 0.99), (3.0, 10, 0.98), (0.5, 50, 0.6)]
)
def test_large_effects_are_found_with_few_pairs(effect: float, within: int, power: float) -> None:
    decided = first_verdicts(effect, 2000, within)
    assert (decided > 0).mean() > power


def test_all_intervals_hold_the_true_mean_together() -> None:
    generator, num = np.random.default_rng(1), 400
    missed = 0
    for _ in range(num):
        looks = confidence_sequence(generator.normal(0.3, 0.2, 25).tolist(), 0.1)
        missed += any(e.low is not None and e.high is not None and not e.low <= 0.3 <= e.high for e in looks)
    assert 0 < missed < 0.1 * num + 3 * (num * 0.09) ** 0.5


def log_likelihood_ratio(differences: Sequence[float]) -> float:
    """Return the logarithm of the likelihood ratio against a mean of 0, for two or more differences."""
    num, spread = len(differences), 1 + len(differences) * EFFECT_VARIANCE
    mean = math.fsum(differences) / num
    squares = math.fsum((value - mean) ** 2 for value in differences)
    ratio = num * mean**2 / squares  # t squared over its degrees of freedom
    return num / 2 * (math.log1p(ratio) - math.log1p(ratio / spread)) - math.log(spread) / 2


def test_the_ratio_is_the_integral_over_effect_sizes() -> None:
    """The noncentral t density of the t statistic, averaged over effects, over that of no effect."""
    gaps = [0.4, -0.1, 0.5, 0.3, 0.2, 0.6]
    num, t = len(gaps), float(stats.ttest_1samp(gaps, 0.0).statistic)

    def density(effect: float) -> float:
        prior = stats.norm.pdf(effect, scale=EFFECT_VARIANCE**0.5)
        return float(prior * stats.nct.pdf(t, num - 1, effect * num**0.5))

    averaged = integrate.quad(density, -8, 8, limit=200)[0]
    assert log_likelihood_ratio(gaps) == pytest.approx(math.log(averaged / stats.t.pdf(t, num - 1)), rel=1e-6)


def test_an_interval_ends_where_the_ratio_reaches_its_limit() -> None:
    gaps = [0.4, -0.1, 0.5, 0.3, 0.2, 0.6]
    end = confidence_sequence(gaps, 0.05)[-1]
    for mean in (end.low, end.high):
        assert mean is not None
        assert log_likelihood_ratio([gap - mean for gap in gaps]) == pytest.approx(
            math.log(1 / 0.05), rel=1e-9
        )


def test_few_and_equal_differences_bound_nothing() -> None:
    assert all(look.low is None for look in confidence_sequence([0.1, 0.2, 0.15], 0.05))
    equal = confidence_sequence([0.1 + 1e-9 * n for n in range(9)], 0.05, sizes=[1.0] * 9)
    assert [look.low for look in equal] == [None] * 9
