"""Fits of a loss over the size of a model or its compute: a power law with an offset, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from hydrant.commands.compare.statistics import CONFIDENCE

MIN_SIZES = 4
"""The law has three parameters, so three sizes lie on it whatever they are."""

NUM_RESAMPLES = 300

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PowerLaw:
    """`loss = offset + factor * (size / scale) ** -exponent`, with `scale` the geometric mean of the sizes."""

    offset: float
    factor: float
    exponent: float
    scale: float

    def at(self, size: float | Array) -> Array:
        return self.offset + self.factor * (np.asarray(size) / self.scale) ** -self.exponent


@dataclass(frozen=True)
class Fit:
    """A power law, the intervals of its parameters, and those of its values at some sizes; None without any noise."""

    law: PowerLaw
    exponent: tuple[float, float] | None
    offset: tuple[float, float] | None
    sizes: Sequence[float]
    values: Sequence[float]
    low: Sequence[float] | None  # of the law
    high: Sequence[float] | None


def fit_power_law(sizes: Sequence[float], losses: Sequence[float]) -> PowerLaw:
    """Return the law with the least squared relative distances from the losses; offset and factor are 0 or more.

    For a given exponent, offset and factor follow from linear least squares; the exponent is searched on a grid from
    0.001 to 5, which is refined around its best point. The form of the law is that of Hoffmann et al., 2022, equation
    2, with one size.

    >>> law = fit_power_law([1e6, 1e7, 1e8, 1e9], [2 + 3 * n**-0.3 for n in (1e6, 1e7, 1e8, 1e9)])
    >>> round(law.offset, 4), round(law.exponent, 4)
    (2.0, 0.3)
    """
    scale = float(np.exp(np.mean(np.log(sizes))))
    x, y = np.log(np.asarray(sizes) / scale), np.asarray(losses, dtype=float)
    low, high = _EXPONENTS
    found = PowerLaw(0.0, 0.0, 0.0, scale)
    for _ in range(_REFINEMENTS):
        exponents = np.geomspace(low, high, _GRID)
        offsets, factors = _linear(x, y, exponents)
        laws = offsets[:, None] + factors[:, None] * np.exp(-exponents[:, None] * x)  # (exponents, sizes)
        best = int(np.argmin(np.sum((laws / y - 1) ** 2, axis=1)))
        found = PowerLaw(float(offsets[best]), float(factors[best]), float(exponents[best]), scale)
        low, high = float(exponents[max(best - 1, 0)]), float(exponents[min(best + 1, _GRID - 1)])
    return found


_EXPONENTS = (1e-3, 5.0)
_GRID, _REFINEMENTS = 60, 5


def _linear(x: Array, y: Array, exponents: Array) -> tuple[Array, Array]:
    """Return the offset and the factor, 0 or more, with the least squared relative distances for each exponent."""
    ones, powers = 1 / y, np.exp(-exponents[:, None] * x) / y
    aa, ab, bb = ones @ ones, powers @ ones, np.sum(powers**2, axis=1)
    a, b = np.sum(ones), np.sum(powers, axis=1)
    determinant = np.maximum(aa * bb - ab**2, 1e-300)
    offsets, factors = (a * bb - ab * b) / determinant, (aa * b - ab * a) / determinant
    offsets, factors = np.where(factors < 0, a / aa, offsets), np.maximum(factors, 0.0)
    return np.maximum(offsets, 0.0), np.where(offsets < 0, b / bb, factors)


def fit_with_intervals(
    sizes: Sequence[float],
    losses: Sequence[float],
    errors: Sequence[float] | None,
    degrees: int,
    at: Sequence[float],
) -> Fit:
    """Fit a power law, with intervals that say how far the noise of the seeds moves it.

    The intervals are percentiles over fits to the losses plus noise, drawn with the standard errors from Student's t
    distribution (a parametric bootstrap). They assume that the law holds.

    Args:
        sizes: at least `MIN_SIZES`.
        losses: the mean at each size.
        errors: the standard errors of these means; None if they are unknown.
        degrees: of freedom of these errors.
        at: the sizes at which the law is evaluated.
    """
    law, places = fit_power_law(sizes, losses), np.asarray(at, dtype=float)
    values = law.at(places).tolist()
    if errors is None:
        return Fit(law, None, None, list(at), values, None, None)
    noise = stats.t.rvs(degrees, size=(NUM_RESAMPLES, len(sizes)), random_state=np.random.default_rng(0))
    samples = np.maximum(np.asarray(losses) + noise * np.asarray(errors), 1e-12)
    laws = [fit_power_law(sizes, sample.tolist()) for sample in samples]
    low, high = _percentiles(np.array([other.at(places) for other in laws]))
    exponents, offsets = (
        _percentiles(np.array(column)) for column in ([o.exponent for o in laws], [o.offset for o in laws])
    )
    return Fit(law, _pair(exponents), _pair(offsets), list(at), values, low.tolist(), high.tolist())


def _percentiles(samples: Array) -> Array:
    tail = 100 * (1 - CONFIDENCE) / 2
    return np.percentile(samples, [tail, 100 - tail], axis=0)


def _pair(ends: Array) -> tuple[float, float]:
    return float(ends[0]), float(ends[1])
