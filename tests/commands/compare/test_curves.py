"""The curves of the page."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from planted import Compare

from hydrant.commands.compare.curves import _plain, curves, thinning_indices


def test_thinned_curves_keep_their_ends_and_extremes() -> None:
    values = np.random.default_rng(0).normal(size=10_000)
    indices = thinning_indices(values, 200)
    assert len(indices) <= 202
    assert {0, len(values) - 1, int(values.argmin()), int(values.argmax())} <= set(indices)
    assert thinning_indices(values[:200], 200) == list(range(200))
    values[5] = np.nan
    assert np.isfinite(values[thinning_indices(values, 200)]).all()


def test_mean_curves_include_the_runs_with_a_result(planted: Path, comparing: Compare) -> None:
    comparison = comparing(planted)
    data = curves(comparison)
    place = next(n for n, g in enumerate(comparison.groups) if g.labels["optimizer"] == "lion")
    runs = [run for run in comparison.groups[place].runs if run.state == "finished"]
    curve = data["groups"]["val/accuracy"][place]
    assert curve["n"] == len(runs) == 3
    assert curve["v"] == pytest.approx(
        np.mean([r.series["val/accuracy"].values for r in runs], axis=0), rel=1e-5
    )
    assert curve["low"][-1] == pytest.approx(comparison.groups[place].estimate.low, rel=1e-5)
    assert curve["s"][-1] == 1.0


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.1234567, 0.5, 0.97222222, 0.97222222], [0.12346, 0.5, 0.97222, 0.97222]),  # saturated
        ([0.97222222, 0.97222222], [0.97222222, 0.97222222]),
        ([1e6 + 0.123456789, 1e6 + 0.25, 1e6 + 0.5], [1000000.1235, 1000000.25, 1000000.5]),
        ([1.797e308, 1.5, 0.5, math.nan], [1.797e308, 1.5, 0.5, None]),
        ([0.5, 1.79769e308, 1.5], [0.5, None, 1.5]),  # 1.7977e308 is infinity
    ],
)  # fmt: skip
def test_curves_keep_the_digits_that_show_their_changes(
    values: list[float], shown: list[float | None]
) -> None:
    assert _plain(np.array(values)) == shown
