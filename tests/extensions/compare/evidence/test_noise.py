"""Standard deviations over seeds and their intervals equal those of scipy and cover the truth in simulations."""

import numpy as np
import pytest
from scipy import stats

from hydrant.extensions.compare.statistics import bartlett, spread


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
