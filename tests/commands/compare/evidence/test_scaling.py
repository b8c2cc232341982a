"""Power laws: recovered from exact values, with intervals that cover the truth in simulations."""

from __future__ import annotations

import numpy as np
import pytest

from hydrant.commands.compare.evidence import scaling
from hydrant.commands.compare.evidence.scaling import fit_power_law, fit_with_intervals

SIZES = np.geomspace(1e5, 3e7, 6)


@pytest.mark.parametrize(("offset", "exponent"), [(0.0, 0.1), (1.7, 0.34), (3.0, 0.8), (0.5, 0.0)])
def test_exact_laws_are_recovered(offset: float, exponent: float) -> None:
    losses = offset + 40 * SIZES**-exponent
    law = fit_power_law(SIZES.tolist(), losses.tolist())
    assert law.at(SIZES) == pytest.approx(losses, rel=1e-5)
    if exponent:
        assert (law.offset, law.exponent) == pytest.approx((offset, exponent), rel=1e-2, abs=1e-2)
        assert float(law.at(1e9)) == pytest.approx(offset + 40 * 1e9**-exponent, rel=1e-2)


def covered(num: int) -> int:
    """Return how often the interval at the next size covers the truth."""
    generator, hits = np.random.default_rng(0), 0
    truth, error = 1.7 + 40 * SIZES**-0.34, 0.01
    for _ in range(num):
        losses = truth + generator.normal(0, error, len(SIZES))
        fit = fit_with_intervals(SIZES.tolist(), losses.tolist(), [error] * len(SIZES), 200, [1e8])
        assert fit.low is not None
        assert fit.high is not None
        hits += fit.low[0] <= 1.7 + 40 * 1e8**-0.34 <= fit.high[0]
    return hits


def test_the_prediction_interval_covers_the_next_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "NUM_RESAMPLES", 60)
    assert covered(12) >= 9


@pytest.mark.slow
def test_the_prediction_interval_covers_the_next_size_in_95_of_100_cases() -> None:
    assert covered(200) >= 178


def test_without_errors_there_are_no_intervals() -> None:
    fit = fit_with_intervals(SIZES.tolist(), (1 + SIZES**-0.2).tolist(), None, 0, [1e8])
    assert (fit.low, fit.exponent) == (None, None)
