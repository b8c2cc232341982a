"""The expected best of n trials equals a simulation of drawing them."""

import numpy as np
import pytest

from hydrant.extensions.compare.statistics import best_of_n


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
