"""The statistics equal their references: the power of t-tests, noise, the best of n trials, fixed targets, basins."""

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import DescrStatsW

from hydrant.extensions.compare.statistics import (
    bartlett,
    beats_target,
    best_of_n,
    find_basin,
    power,
    seeds_needed,
    spread,
)

RATIOS = (0.25, 0.5, 1.0, 1.7, 3.0, 8.0)


@pytest.mark.parametrize("num_seeds", [2, 3, 5, 20, 200])
@pytest.mark.parametrize("ratio", RATIOS)
def test_the_power_equals_that_of_statsmodels(ratio: float, num_seeds: int) -> None:
    for num_comparisons in (1, 8):
        level = 0.05 / num_comparisons
        found = power(-2 * ratio, 2.0, num_seeds, num_comparisons)
        expected, tolerance = TTestPower().power(ratio, num_seeds, level), 1e-6
        if math.isnan(expected):  # where a tail is too far out for scipy
            drawn = stats.nct.rvs(num_seeds - 1, ratio * num_seeds**0.5, size=20_000, random_state=0)
            expected, tolerance = np.mean(np.abs(drawn) > stats.t.isf(level / 2, num_seeds - 1)), 0.03
        assert found == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("ratio", RATIOS)
def test_the_number_of_seeds_is_that_of_statsmodels_rounded_up(ratio: float) -> None:
    for num_comparisons in (1, 8):
        found = seeds_needed(ratio, 1.0, num_comparisons)
        assert found is not None
        if found > 5:  # statsmodels' search fails below
            solved = TTestPower().solve_power(effect_size=ratio, alpha=0.05 / num_comparisons, power=0.8)
            assert found == math.ceil(float(np.squeeze(solved)))
        assert power(ratio, 1.0, found, num_comparisons) >= 0.8
        assert found == 2 or power(ratio, 1.0, found - 1, num_comparisons) < 0.8


def test_a_difference_that_no_number_of_seeds_shows_has_none() -> None:
    assert seeds_needed(1e-4, 1.0) is None
    assert seeds_needed(1e4, 1.0) == 2


@pytest.mark.parametrize("mode", ["max", "min"])
def test_the_curve_equals_simulated_draws(mode: str) -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(0.8, 0.1, 9)
    curve = best_of_n(values.tolist(), mode).expected
    for n in (1, 2, 5, 9):
        draws = generator.choice(values, (40_000, n))
        best = draws.max(axis=1) if mode == "max" else draws.min(axis=1)
        assert curve[n - 1] == pytest.approx(best.mean(), abs=4 * best.std() / 200)
    assert curve[0] == pytest.approx(values.mean())
    assert list(curve) == sorted(curve, reverse=mode == "min")


def test_a_smaller_budget_is_the_beginning_of_the_curve() -> None:
    values = [0.3, 0.1, 0.5, 0.2]
    whole, part = best_of_n(values, "min"), best_of_n(values, "min", 2)
    assert part.expected == pytest.approx(whole.expected[:2])
    assert part.low is not None
    assert whole.low is not None
    assert part.low == pytest.approx(whole.low[:2])


def test_the_interval_covers_the_expected_best_of_few_trials() -> None:
    """For uniform values the expected best of 2 is 1/3."""
    generator, covered = np.random.default_rng(1), 0
    for _ in range(200):
        curve = best_of_n(generator.random(25).tolist(), "min", 2)
        assert curve.low is not None
        assert curve.high is not None
        covered += curve.low[1] <= 1 / 3 <= curve.high[1]
    assert covered > 175


def test_one_trial_has_no_interval() -> None:
    curve = best_of_n([0.5], "min")
    assert (curve.expected, curve.low) == ([0.5], None)


def test_one_group_has_the_chi_square_interval_of_statsmodels_and_scipy() -> None:
    sample = np.random.default_rng(0).normal(2.0, 0.3, 7).tolist()
    result = spread([sample])
    variance = np.var(sample, ddof=1)
    ends = [(6 * variance / stats.chi2(6).ppf(q)) ** 0.5 for q in (0.975, 0.025)]
    assert (result.num, result.degrees) == (7, 6)
    assert result.std == pytest.approx(stats.tstd(sample), rel=1e-12)
    assert (result.low, result.high) == pytest.approx(ends, rel=1e-12)


def test_the_pooled_deviation_is_that_of_an_analysis_of_variance() -> None:
    generator = np.random.default_rng(1)
    samples = [generator.normal(mean, 0.5, num).tolist() for mean, num in ((0, 3), (5, 6), (9, 4))]
    result = spread(samples)
    # F = (mean square between groups) / (mean square within groups)
    everything = np.concatenate(samples)
    between = sum(len(s) * (np.mean(s) - everything.mean()) ** 2 for s in samples) / 2
    assert result.std == pytest.approx((between / stats.f_oneway(*samples).statistic) ** 0.5, rel=1e-12)
    assert result.degrees == 10
    assert spread([*samples, [3.0]]) == result, "a single value has no scatter"
    assert bartlett(samples) == pytest.approx(stats.bartlett(*samples).pvalue, rel=1e-12)


def test_the_interval_covers_the_true_deviation_in_95_of_100_sweeps() -> None:
    generator = np.random.default_rng(2)
    num = 2000
    results = [spread(generator.normal([[0.0], [3.0], [7.0]], 0.2, (3, 4)).tolist()) for _ in range(num)]
    covered = sum(result.low <= 0.2 <= result.high for result in results)  # type: ignore[operator]
    assert stats.binom.cdf(covered, num, 0.95) > 1e-3
    assert stats.binom.sf(covered, num, 0.95) > 1e-3


def test_what_cannot_be_known_is_none() -> None:
    assert spread([]).std is None
    assert spread([[1.0], [2.0]]).std is None
    equal = spread([[0.5, 0.5], [0.25, 0.25]])
    assert (equal.std, equal.low, equal.degrees) == (0.0, None, 2)
    assert bartlett([[1.0, 2.0]]) is None
    assert bartlett([[1.0, 2.0], [3.0, 3.0]]) is None


@pytest.mark.parametrize(("mode", "alternative"), [("min", "less"), ("max", "greater")])
def test_it_is_the_one_sided_t_test_of_scipy(mode: str, alternative: str) -> None:
    values = np.random.default_rng(0).normal(3.279, 0.002, 6).tolist()
    result, reference = (
        beats_target(values, 3.28, mode),
        stats.ttest_1samp(values, 3.28, alternative=alternative),
    )
    assert result.p == pytest.approx(reference.pvalue, rel=1e-9)
    interval = stats.t.interval(0.95, 5, np.mean(values), stats.sem(values))
    assert (result.low, result.high) == pytest.approx(interval, rel=1e-12)


def test_a_known_sigma_makes_it_a_z_test() -> None:
    """`zconfint_mean` of statsmodels estimates the variance; scaled to sigma it must agree."""
    values, sigma = [3.2791, 3.2779, 3.2786, 3.2788], 0.0013
    result = beats_target(values, 3.28, "min", sigma)
    assert result.p == pytest.approx(stats.norm.cdf((np.mean(values) - 3.28) / (sigma / 2)), rel=1e-12)
    assert (result.low, result.high) == pytest.approx(stats.norm.interval(0.95, np.mean(values), sigma / 2))
    scaled = (np.array(values) - np.mean(values)) * sigma / np.std(values, ddof=1) + np.mean(values)
    assert DescrStatsW(scaled).ztest_mean(3.28, alternative="smaller")[1] == pytest.approx(result.p, rel=1e-9)
    assert beats_target([3.27], 3.28, "min", sigma).p is not None, "one run is enough where sigma is known"


def test_the_statistic_is_that_of_track_3() -> None:
    """The baseline of the track: ten runs with a mean of 3.2787."""
    result = beats_target([3.2787] * 10, 3.28, "min", 0.0013)
    assert result.statistic == pytest.approx((3.28 - 3.2787) * 10**0.5)
    assert result.statistic is not None
    assert result.statistic >= 0.004
    assert result.p is not None
    assert result.p < 0.001


def test_one_result_and_equal_results_have_no_t_test() -> None:
    assert beats_target([0.5], 1.0, "min").p is None
    assert beats_target([0.5], 1.0, "min").margin == 0.5
    assert beats_target([0.5, 0.5], 1.0, "min").p is None
    assert beats_target([], 1.0, "min").mean is None


def test_a_mean_at_the_target_passes_as_often_as_the_level_says() -> None:
    runs = np.random.default_rng(0).normal(3.28, 0.01, (2000, 4))
    passed = sum((beats_target(values.tolist(), 3.28, "min").p or 0.0) < 0.05 for values in runs)
    assert 0.035 * 2000 < passed < 0.065 * 2000


LRS = np.geomspace(1e-4, 1.0, 81).tolist()


@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_parabola_has_the_basin_of_its_formula(mode: str) -> None:
    """loss = 1 + (log10(lr) + 2)^2 is within 0.25 of its best over a factor of 10."""
    losses = [1 + (np.log10(lr) + 2) ** 2 for lr in LRS]
    basin = find_basin(LRS, losses if mode == "min" else [-loss for loss in losses], 0.25, mode)
    assert basin is not None
    assert basin.best_lr == pytest.approx(1e-2)
    assert (basin.low, basin.high) == pytest.approx((10**-2.5, 10**-1.5), rel=0.01)
    assert basin.factor == pytest.approx(10, rel=0.02)
    assert not (basin.is_low_open)
    assert not (basin.is_high_open)


def test_ends_that_were_not_tried_are_open() -> None:
    basin = find_basin([1e-3, 1e-2, 1e-1], [0.3, 0.2, 0.1], 0.05, "min")
    assert basin is not None
    assert (basin.best_lr, basin.high, basin.is_high_open, basin.is_low_open) == (0.1, 0.1, True, False)
    assert basin.low == pytest.approx(0.1 / 10**0.5)


def test_rates_that_diverged_end_the_basin() -> None:
    basin = find_basin([1e-3, 1e-2, 1e-1, 1.0], [0.2, 0.1, None, 0.1], 0.5, "min")
    assert basin is not None
    assert (basin.low, basin.high, basin.is_high_open) == (1e-3, 1e-2, False)
    assert find_basin([1e-3, 1e-2], [None, None], 0.5, "min") is None
