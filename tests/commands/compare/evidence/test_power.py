"""The power of t-tests and the seeds that a difference needs equal those of statsmodels."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.power import TTestIndPower, TTestPower

from hydrant.commands.compare.evidence.power import detectable_difference, power, seeds_needed

RATIOS = (0.25, 0.5, 1.0, 1.7, 3.0, 8.0)


@pytest.mark.parametrize("num_seeds", [2, 3, 5, 20, 200])
@pytest.mark.parametrize("ratio", RATIOS)
def test_the_power_equals_that_of_statsmodels(ratio: float, num_seeds: int) -> None:
    cases = (
        (True, TTestPower(), num_seeds - 1, num_seeds**0.5),
        (False, TTestIndPower(), 2 * num_seeds - 2, (num_seeds / 2) ** 0.5),
    )
    for is_paired, solver, degrees, scale in cases:
        found = power(-2 * ratio, 2.0, num_seeds, is_paired=is_paired)
        expected, tolerance = solver.power(ratio, num_seeds, 0.05), 1e-6
        if math.isnan(expected):  # where a tail is too far out for scipy
            drawn = stats.nct.rvs(degrees, ratio * scale, size=20_000, random_state=0)
            expected, tolerance = np.mean(np.abs(drawn) > stats.t.ppf(0.975, degrees)), 0.03
        assert found == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("ratio", RATIOS)
def test_the_number_of_seeds_is_that_of_statsmodels_rounded_up(ratio: float) -> None:
    for is_paired, solver in ((True, TTestPower()), (False, TTestIndPower())):
        found = seeds_needed(ratio, 1.0, is_paired=is_paired)
        assert found is not None
        if found > 3:  # statsmodels' search fails below
            solved = solver.solve_power(effect_size=ratio, alpha=0.05, power=0.8)
            assert found == math.ceil(float(np.squeeze(solved)))
        assert power(ratio, 1.0, found, is_paired=is_paired) >= 0.8
        assert found == 2 or power(ratio, 1.0, found - 1, is_paired=is_paired) < 0.8


def test_the_detectable_difference_is_the_inverse() -> None:
    for num_seeds in (2, 3, 5, 30):
        for is_paired in (True, False):
            difference = detectable_difference(0.2, num_seeds, is_paired=is_paired)
            assert power(difference, 0.2, num_seeds, is_paired=is_paired) == pytest.approx(0.8, abs=1e-9)


def test_a_difference_that_no_number_of_seeds_shows_has_none() -> None:
    assert seeds_needed(1e-4, 1.0, is_paired=True) is None
    assert seeds_needed(1e4, 1.0, is_paired=True) == 2


def test_so_many_seeds_find_the_difference_in_80_of_100_simulated_comparisons() -> None:
    num_seeds, num = seeds_needed(0.3, 0.25, is_paired=True), 4000
    assert num_seeds is not None
    gaps = np.random.default_rng(0).normal(0.3, 0.25, (num, num_seeds))
    found = int((stats.ttest_1samp(gaps, 0.0, axis=1).pvalue < 0.05).sum())
    expected = power(0.3, 0.25, num_seeds, is_paired=True)
    assert abs(found - num * expected) < 4 * (num * expected * (1 - expected)) ** 0.5
