"""Scaling: the loss over parameters, compute or another size, and whether a larger run was predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scipy import stats

from hydrant.commands.compare.evidence.noise import Spread, spread
from hydrant.commands.compare.evidence.scaling import MIN_SIZES, Fit, fit_with_intervals
from hydrant.commands.compare.groups import Group, Metric
from hydrant.commands.compare.run import Run
from hydrant.commands.compare.statistics import CONFIDENCE
from hydrant.commands.compare.verdicts.cells import Cells, result
from hydrant.commands.compare.verdicts.tuning import tuned_keys
from hydrant.errors import ConfigError
from hydrant.terminal.numbers import interval, number

PARAMETERS, COMPUTE = "parameters", "compute"
_NUM_POINTS = 40
_MIN_EXPONENT = 2e-3  # below, the search has found no curve


@dataclass(frozen=True)
class Prediction:
    """The largest size, predicted by the smaller ones."""

    size: float
    predicted: float
    low: float | None  # of the interval for the mean of the runs of this size
    high: float | None
    measured: float

    @property
    def is_hit(self) -> bool | None:
        """Whether the interval holds the measured loss; None without an interval."""
        return None if self.low is None or self.high is None else self.low <= self.measured <= self.high


@dataclass(frozen=True)
class Scaling:
    """The sizes of one method, the law fitted to all of them, and the check of its prediction."""

    name: str
    sizes: Sequence[float]
    losses: Sequence[float]
    nums: Sequence[int]
    fit: Fit | None  # None: refused, see `sentence`
    check: Prediction | None  # None: too few sizes
    sentence: str


@dataclass(frozen=True)
class Scalings:
    """The scaling of every method over the same size."""

    size: str
    methods: Sequence[Scaling]
    sentences: Sequence[str]


def find_scalings(
    cells: Cells, metric: Metric, size: str | None, tuned: Sequence[str] | None
) -> Scalings | None:
    """Return the scaling over a size: `parameters`, `compute` or a key; None if it is not asked for.

    At each size, the tuned setting with the best mean counts.

    Raises:
        ConfigError: the runs have no such size, or more of the metric is better.
    """
    if size is None:
        return None
    if metric.mode == "max":
        message = f"a power law describes a loss, but more {metric.name} is better; add --metric val/loss"
        raise ConfigError("--scale", message)
    keys = [*tuned_keys(cells, tuned), *_size_keys(cells, size)]
    methods = [_scaling(name, groups, size) for name, groups in cells.lines(keys).items()]
    found = Scalings(size, methods, [])
    return replace(found, sentences=_sentences(found, metric))


def _size_keys(cells: Cells, size: str) -> list[str]:
    """Return the keys that make the sizes: the key itself, or those of the model and the budget."""
    if size not in (PARAMETERS, COMPUTE):
        return [size]
    prefixes = ("model",) if size == PARAMETERS else ("model", "duration", "global_batch_size")
    return [key for key in cells.keys if key.partition(".")[0] in prefixes]


def _size(run: Run, size: str) -> float:
    """Return the size of a run.

    Raises:
        ConfigError: it is unknown.
    """
    summary = run.summary
    if size == PARAMETERS:
        value = summary.get("num_parameters")
    elif size == COMPUTE:  # a backward pass costs two forward passes
        factors = summary.get("flops_per_sample"), summary.get("num_updates"), run.samples_per_update
        known = [factor for factor in factors if factor is not None]
        value = 3.0 * math.prod(known) if len(known) == len(factors) else None
    else:
        value = run.config.get(size)
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        known = f"{size} of {run.name} is {value!r}" if value is not None else f"{run.name} has no {size}"
        raise ConfigError("--scale", known, remedy="give parameters, compute or a key with positive numbers")
    return float(value)


def _scaling(name: str, groups: Sequence[Group], size: str) -> Scaling:
    points: dict[float, Group] = {}
    for group in groups:
        mean, at = result(group), _size(group.runs[0], size)
        best = points.get(at)
        if mean is not None and (best is None or mean < (best.estimate.mean or 0.0)):
            points[at] = group
    chosen = dict(sorted(points.items()))
    sizes, samples = list(chosen), [list(group.results.values()) for group in chosen.values()]
    losses = [sum(sample) / len(sample) for sample in samples]
    base = Scaling(name, sizes, losses, [len(sample) for sample in samples], None, None, "")
    if len(sizes) < MIN_SIZES or min(losses) <= 0:
        return replace(base, sentence=_refusal(base))
    noise = spread(samples)
    at = [sizes[0] * (10 * sizes[-1] / sizes[0]) ** (n / (_NUM_POINTS - 1)) for n in range(_NUM_POINTS)]
    fit = fit_with_intervals(sizes, losses, _errors(noise, samples), noise.degrees, at)
    if fit.law.exponent <= _MIN_EXPONENT or fit.law.factor <= 1e-9 * max(losses):
        return replace(base, sentence=f"{name}: no law, because the loss does not fall with the {size}.")
    found = replace(base, fit=fit, check=_check(base, samples))
    return replace(found, sentence=_sentence(found, size))


def _refusal(scaling: Scaling) -> str:
    num = len(scaling.sizes)
    if num >= MIN_SIZES:
        return f"{scaling.name}: no law, because a loss is 0 or below."
    return (
        f"{scaling.name}: no law, because its three parameters need {MIN_SIZES} sizes with results, not {num}. "
        f"With {MIN_SIZES + 1}, a prediction is checked too."
    )


def _errors(noise: Spread, samples: Sequence[Sequence[float]]) -> list[float] | None:
    return [noise.std / len(sample) ** 0.5 for sample in samples] if noise.std else None


def _check(scaling: Scaling, samples: Sequence[Sequence[float]]) -> Prediction | None:
    """Predict the largest size from the others; its interval has the noise of the fit and of the measured mean."""
    if len(scaling.sizes) <= MIN_SIZES:
        return None
    noise, largest = spread(samples), scaling.sizes[-1]
    errors = _errors(noise, samples)
    of_others = None if errors is None else errors[:-1]
    fit = fit_with_intervals(scaling.sizes[:-1], scaling.losses[:-1], of_others, noise.degrees, [largest])
    predicted, measured = fit.values[0], scaling.losses[-1]
    if errors is None or fit.low is None or fit.high is None or noise.high is None:
        return Prediction(largest, predicted, None, None, measured)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, noise.degrees)) * errors[-1]
    below, above = math.hypot(predicted - fit.low[0], half), math.hypot(fit.high[0] - predicted, half)
    return Prediction(largest, predicted, predicted - below, predicted + above, measured)


def _sentence(scaling: Scaling, size: str) -> str:
    fit = scaling.fit
    assert fit is not None
    text = f"{scaling.name}: the loss falls as {size} to the power of -{number(fit.law.exponent)}"
    text += f" towards {number(fit.law.offset)}"
    if fit.exponent is not None and fit.offset is not None:
        text += f" (95 % intervals {interval(*fit.exponent)} and {interval(*fit.offset)})"
    else:
        text += " (no intervals: one result at each size, so the noise is unknown)"
    check = scaling.check
    if check is None:
        return f"{text}. The prediction is not checked, because that needs {MIN_SIZES + 1} sizes."
    predicted = f"{number(check.predicted)}"
    if check.is_hit is None:
        return f"{text}. The smaller sizes predict {predicted} at {check.size:.3g}; measured {number(check.measured)}."
    verdict = "as predicted" if check.is_hit else "not as predicted: do not extrapolate this law"
    return (
        f"{text}. The smaller sizes predict {predicted} ({interval(check.low, check.high)}) at {check.size:.3g}; "
        f"measured {number(check.measured)}, {verdict}."
    )


def _sentences(found: Scalings, metric: Metric) -> list[str]:
    sentences = [scaling.sentence for scaling in found.methods]
    if any(scaling.fit is not None for scaling in found.methods):
        sentences.append(
            "At each size, the best tuned setting counts. The law is "
            f"{metric.name} = offset + factor * {found.size}^-exponent. Its intervals include the noise of the seeds, "
            "but not the doubt whether the law holds beyond the tried sizes."
        )
    return sentences
