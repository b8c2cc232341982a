"""The curves of the page."""

import math
from pathlib import Path

import numpy as np
import pytest
from planted import Compare, write_run

from hydrant.extensions.compare.html_page import _plain, curves, thinning_indices


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


def test_runs_that_have_ended_are_in_neither_the_mean_nor_its_time(
    tmp_path: Path, comparing: Compare
) -> None:
    """Two of four runs end after 40 updates, at twice the speed of the others."""
    for seed, (value, end, rate) in enumerate(
        [(0.5, 40, 200.0), (0.6, 40, 200.0), (0.7, 80, 100.0), (0.9, 80, 100.0)]
    ):
        keys = {"optimizer": "adamw", "seed": seed}
        write_run(tmp_path / f"{seed}", keys, value, total_updates=end, updates_per_second=rate)
    curve = curves(comparing(tmp_path))["groups"]["val/accuracy"][0]
    places = {u: n for n, u in enumerate(curve["u"])}
    assert (curve["s"][places[40]], curve["s"][places[60]], curve["s"][places[80]]) == (0.3, 0.6, 0.8)
    assert (curve["v"][places[40]], curve["v"][places[80]]) == (
        pytest.approx((0.5 + 0.6 + (0.7 + 0.9) * (1 - np.exp(-2.5))) / 4, rel=1e-4), 0.8
    )  # fmt: skip


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
