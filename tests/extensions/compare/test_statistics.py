"""Means, intervals, paired tests and corrections equal those of scipy and statsmodels."""

from pathlib import Path

import numpy as np
import pytest
from planted import MEANS, comparing, expected_results, group_of
from scipy import stats
from statsmodels.stats.multitest import multipletests

from hydrant.extensions.compare.groups import balanced, independent
from hydrant.extensions.compare.statistics import estimate, holm, paired


def test_groups_have_the_mean_and_the_t_interval_of_scipy(planted: Path) -> None:
    comparison = comparing(planted)
    assert len(comparison.groups) == len(MEANS)
    for cell in MEANS:
        values, group = list(expected_results(cell).values()), group_of(comparison, *cell)
        low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
        result = group.estimate
        assert result.num == len(values)
        assert result.mean == pytest.approx(np.mean(values), rel=1e-12)
        assert result.std == pytest.approx(stats.tstd(values), rel=1e-12)
        assert (result.low, result.high) == pytest.approx((low, high), rel=1e-12)
        assert result.median == pytest.approx(np.median(values), rel=1e-12)


@pytest.mark.parametrize("baseline", ["optimizer=sgd", "optimizer=adamw,scheduler=wsd"])
def test_differences_equal_those_of_scipy_paired_by_seed(planted: Path, baseline: str) -> None:
    comparison = comparing(planted, baseline=baseline)
    assert comparison.baseline is not None
    base = expected_results(
        (comparison.baseline.labels["optimizer"], comparison.baseline.labels["scheduler"])
    )
    raw: list[float] = []
    corrected: list[float | None] = []
    for cell in MEANS:
        group, results = group_of(comparison, *cell), expected_results(cell)
        if group is comparison.baseline:
            assert group.versus is None
            continue
        shared = [seed for seed in results if seed in base]
        reference = stats.ttest_rel([results[s] for s in shared], [base[s] for s in shared])
        interval = reference.confidence_interval(0.95)
        assert group.versus is not None
        assert group.versus.num_pairs == len(shared)
        assert group.versus.p == pytest.approx(reference.pvalue, rel=1e-9)
        assert (group.versus.low, group.versus.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
        raw.append(group.versus.p or 0.0)
        corrected.append(group.versus.p_holm)
    assert corrected == pytest.approx(multipletests(raw, method="holm")[1], rel=1e-12)


def test_holm_equals_that_of_statsmodels() -> None:
    generator = np.random.default_rng(0)
    for num in (1, 2, 7, 30):
        p_values = (generator.random(num) ** 3).tolist()
        assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1].tolist(), rel=1e-12)
    assert holm([]) == []


def test_undefined_statistics_are_none() -> None:
    assert estimate([]).mean is None
    assert (estimate([0.5]).mean, estimate([0.5]).std, estimate([0.5]).low) == (0.5, None, None)
    assert paired([0.5], [0.25]).p is None
    assert paired([0.5, 0.75], [0.25, 0.5]).p is None, "equal differences"
    assert paired([0.5, 0.75], [0.25, 0.5]).mean == 0.25
    assert paired([], []).mean is None
    tie = paired([0.925, 0.925, 2.8 / 3], [2.75 / 3, 2.8 / 3, 2.8 / 3])
    assert tie.mean == 0.0, "not the rounding of its mean, 3.7e-17"
    assert (estimate([0.5, 0.5]).std, estimate([0.5, 0.5]).low) == (0.0, None), (
        "equal values have no interval"
    )
    correct = np.array([352, 350, 345, 343], np.float32) / np.float32(360)  # as logged
    rounded = paired([float(v) for v in correct[:2]], [float(v) for v in correct[2:]])
    assert rounded.mean == pytest.approx(7 / 360)
    assert (rounded.low, rounded.p) == (None, None), "values that are equal up to float32 rounding"


@pytest.mark.parametrize("shape", [(3, 3), (6, 3), (2, 10)])
def test_independent_numbers_of_crossed_keys_scatter_as_an_analysis_of_variance_says(
    shape: tuple[int, int],
) -> None:
    """Where the numbers of values divide: the mean squares of both keys, without that of the rest taken away."""
    table = np.random.default_rng(0).normal(size=shape)
    found = independent({f"{a} {b}": float(table[a, b]) for a, b in np.ndindex(*shape)})
    of_parts = [
        np.var([part.mean() for part in np.split(table.mean(axis=axis), min(shape))], ddof=1)
        for axis in (0, 1)
    ]
    assert len(found) == min(shape)
    assert np.mean(found) == pytest.approx(table.mean())
    assert np.var(found, ddof=1) >= sum(of_parts) - 2 * (of_parts[0] * of_parts[1]) ** 0.5


@pytest.mark.parametrize(
    ("labels", "num"),
    [
        (["0 0", "1 1", "2 2"], 3),  # drawn together
        (["0 -", "1 -", "2 -"], 3),
        (["0 0", "1 0", "2 1", "3 1"], 2),  # a key that determines another one
        (["0 0", "1 1", "2 2", "3 3", "0 1"], 3),  # one run beside those that are drawn together
        (["0 0", "1 0", "2 0", "0 1", "0 2"], 3),  # one key after the other
    ],
)
def test_results_that_share_a_value_are_not_independent(labels: list[str], num: int) -> None:
    results = {label: float(n**2) for n, label in enumerate(labels)}
    found = independent(results)
    assert len(found) == num
    assert np.mean(found) == pytest.approx(np.mean([results[label] for label in balanced(labels)]))
