"""The expected best result of n trials; Dodge et al., "Show Your Work", 2019, section 3.1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hydrant.commands.compare.statistics import CONFIDENCE

NUM_RESAMPLES = 2000


@dataclass(frozen=True)
class BestOfN:
    """The expected best of 1, 2, ... trials, with a bootstrap interval over the trials; None for one trial."""

    expected: Sequence[float]
    low: Sequence[float] | None
    high: Sequence[float] | None


def best_of_n(values: Sequence[float], mode: str, num: int | None = None) -> BestOfN:
    """Return the expected best of 1 to `num` trials that are drawn, with replacement, from these trials.

    With the sorted values v(1) to v(N), v(N) the best, the best of n is v(i) with probability (i/N)^n - ((i-1)/N)^n.
    The interval has the percentiles of this curve over samples of N trials, drawn with replacement. Draws repeat
    trials, so the curve underestimates where n is near N (Tang et al., "Showing Your Work Doesn't Always Work", 2020).

    >>> [round(value, 4) for value in best_of_n([3.0, 1.0, 2.0], "min").expected]
    [2.0, 1.5556, 1.3333]
    """
    sign = 1.0 if mode == "max" else -1.0
    trials = sign * np.asarray(values, dtype=float)
    weights = _weights(len(trials), num or len(trials))
    expected = sign * (weights @ np.sort(trials))
    if len(trials) == 1:
        return BestOfN(expected.tolist(), None, None)
    draws = np.random.default_rng(0).choice(trials, (NUM_RESAMPLES, len(trials)))
    curves = sign * (np.sort(draws, axis=1) @ weights.T)  # (resamples, n)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(curves, [tail, 100 - tail], axis=0)
    return BestOfN(expected.tolist(), low.tolist(), high.tolist())


def _weights(num_trials: int, num: int) -> npt.NDArray[np.float64]:
    """Return the probability that the i-th value is the best of n, (n, i)."""
    shares = np.arange(num_trials + 1) / num_trials
    return np.diff(shares[None, :] ** np.arange(1, num + 1)[:, None], axis=1)
