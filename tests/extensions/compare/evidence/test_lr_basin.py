"""The basin of a learning rate: its ends lie where the interpolated curve reaches the tolerance."""

import numpy as np
import pytest

from hydrant.extensions.compare.statistics import find_basin

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
