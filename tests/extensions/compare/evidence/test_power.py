"""The power of t-tests and the seeds that a difference needs equal those of statsmodels."""

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from hydrant.extensions.compare.statistics import detectable_difference, power, seeds_needed

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


def test_the_detectable_difference_is_the_inverse() -> None:
    for num_seeds in (2, 3, 5, 30):
        for num_comparisons in (1, 88):
            difference = detectable_difference(0.2, num_seeds, num_comparisons)
            assert power(difference, 0.2, num_seeds, num_comparisons) == pytest.approx(0.8, abs=1e-9)


def test_a_difference_that_no_number_of_seeds_shows_has_none() -> None:
    assert seeds_needed(1e-4, 1.0) is None
    assert seeds_needed(1e4, 1.0) == 2


def test_so_many_seeds_find_the_difference_in_80_of_100_simulated_comparisons() -> None:
    num_seeds, num = seeds_needed(0.3, 0.25), 4000
    assert num_seeds is not None
    gaps = np.random.default_rng(0).normal(0.3, 0.25, (num, num_seeds))
    found = int((stats.ttest_1samp(gaps, 0.0, axis=1).pvalue < 0.05).sum())
    expected = power(0.3, 0.25, num_seeds)
    assert abs(found - num * expected) < 4 * (num * expected * (1 - expected)) ** 0.5
