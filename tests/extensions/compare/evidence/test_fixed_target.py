"""Tests against a fixed target equal those of scipy, and the statistic of modded-nanogpt's track 3."""

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.weightstats import DescrStatsW

from hydrant.extensions.compare.statistics import beats_target


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
