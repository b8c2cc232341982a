"""The curves of the page: every run, and each group's mean with its interval, thinned to what a picture can show."""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

from hydrant.config.metric_keys import mode_by_name
from hydrant.extensions.compare import statistics
from hydrant.extensions.compare.comparison import Comparison
from hydrant.extensions.compare.groups import bounds_of, unit_weights
from hydrant.extensions.compare.run import FloatArray, Run, Series

MAX_POINTS = 75_000
"""The curves of all runs have about this many points at most, and so have those of all groups."""

_MIN_CURVE_POINTS, _MAX_CURVE_POINTS = 24, 2000
_DIGITS = 5  # significant, or more where a curve changes less than that
_MAX_DIGITS = 15  # a float has no more
_TINY = 1e-290  # smaller numbers are not rounded
_EXACT = 2.0**53  # below this, a float counts exactly
_CLOCK_POINTS = 64
_MEASURED = ("grad_norm", "loss_scale", "num_skipped")  # metrics of an optimizer that have no schedule


def curves(comparison: Comparison) -> dict[str, Any]:
    """Return the curves by metric: of the runs and of the groups in their order, with None for a missing curve."""
    c = comparison
    metrics = _metrics(c)
    limit = _limit(len(metrics) * len(c.runs))
    means_limit = _limit(len(metrics) * 3 * len(c.groups))  # with both ends of the interval
    scheduled = [m for m in metrics if m.startswith("optim/") and not m.endswith(_MEASURED)]
    return {
        "metrics": metrics,
        "limit": limit,
        "is_thinned": any(len(s.updates) > limit for run in c.runs for s in run.series.values()),
        "runs": {m: [_thinned(run.series.get(m), limit) for run in c.runs] for m in metrics},
        "groups": {
            m: [_mean_curve(g.counted, m, means_limit, bounds_of(m, c.runs)) for g in c.groups]
            for m in metrics
        },
        "schedules": {
            m: [_schedules(g.runs, m, means_limit) for g in c.groups]
            for m in sorted(scheduled, key=lambda m: (m != "optim/lr", m))
        },
        "modes": {m: c.metric.mode if m == c.metric.name else mode_by_name(m) or "max" for m in metrics},
        "clocks": [_clock(run, limit) for run in c.runs],
        "samples_per_update": [run.samples_per_update for run in c.runs],
    }


def _limit(num_curves: int) -> int:
    """Return how many points each of so many curves may have."""
    return min(max(MAX_POINTS // max(num_curves, 1), _MIN_CURVE_POINTS), _MAX_CURVE_POINTS)


def _metrics(c: Comparison) -> list[str]:
    """Return the metrics of the runs, the compared one first. Those of torch.compile are only in the table."""
    metrics = {key for run in c.runs for key in run.series if not key.startswith("compile/")}
    order = ["val", "val_ema", "test", "test_ema", "train", "optim", "perf"]
    phases = {metric: metric.partition("/")[0] for metric in metrics}
    places = {m: order.index(phase) if phase in order else len(order) for m, phase in phases.items()}
    return sorted(metrics, key=lambda metric: (metric != c.metric.name, places[metric], metric))


def _schedules(runs: Sequence[Run], metric: str, limit: int) -> list[dict[str, Any]]:
    """Return the different schedules of a group, as logged."""
    logged = [_thinned(run.series.get(metric), limit) for run in runs]
    return list({json.dumps(curve): curve for curve in logged if curve is not None}.values())


def thinning_indices(values: FloatArray, limit: int) -> list[int]:
    """Return the indices of about `limit` values: the minimum and the maximum of each of `limit` / 2 intervals."""
    if len(values) <= limit:
        return list(range(len(values)))
    size = -(-len(values) // (limit // 2))  # of an interval
    padded = np.pad(values, (0, -len(values) % size), constant_values=np.nan).reshape(-1, size)
    least = np.where(np.isfinite(padded), padded, np.inf).argmin(axis=1)
    greatest = np.where(np.isfinite(padded), padded, -np.inf).argmax(axis=1)
    starts = size * np.arange(len(padded))
    indices = np.concatenate((starts + least, starts + greatest, [0, len(values) - 1]))
    return np.unique(indices).tolist()


def _thinned(series: Series | None, limit: int) -> dict[str, Any] | None:
    if series is None:
        return None
    indices = thinning_indices(series.values, limit)
    return {"u": _plain(series.updates[indices]), "v": _plain(series.values[indices])}


def _mean_curve(
    counted: Mapping[str, Sequence[Run]], metric: str, limit: int, bounds: statistics.Bounds
) -> dict[str, Any] | None:
    """Return the mean over the runs of each seed, then over seeds, at every update where a run has a value.

    Other runs are interpolated linearly; those that have ended are in neither the mean nor its time. If each run has
    one value, as of a test, the mean is one point, also if it was measured after different updates.
    """
    with_metric = {seed: [run for run in runs if metric in run.series] for seed, runs in counted.items()}
    seeds = {seed: of_seed for seed, of_seed in with_metric.items() if of_seed}
    runs = [run for of_seed in seeds.values() for run in of_seed]
    if not runs:
        return None
    updates = np.unique(np.concatenate([run.series[metric].updates for run in runs]))
    are_points = all(len(run.series[metric].updates) == 1 for run in runs)
    updates = np.array([updates.mean()]) if are_points else updates
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # NaN for no value, or for the std of one
        pairs = [_curve_of_seed(of_seed, metric, updates) for of_seed in seeds.values()]
        table, clocks = np.array([values for values, _ in pairs]), np.array([clock for _, clock in pairs])
        weights = unit_weights(tuple(seeds))
        units = table if weights is None else weights @ table
        num = np.isfinite(units).sum(axis=0)  # (seeds, updates) -> (updates,)
        mean, std = np.nanmean(table, axis=0), np.nanstd(units, axis=0, ddof=1)
        half = stats.t.ppf((1 + statistics.CONFIDENCE) / 2, num - 1) * std / np.sqrt(num)
        seconds = _mean_where(np.isfinite(table), clocks)
    batches = [run.samples_per_update for run in runs if run.samples_per_update is not None]
    indices = thinning_indices(mean, limit)
    return {
        "u": _plain(updates[indices]),
        "s": _plain(seconds[indices]),
        "n": int(num.max()),
        "v": _plain(mean[indices]),
        "low": _plain(np.maximum(mean - half, bounds[0])[indices]) if len(seeds) > 1 else None,
        "high": _plain(np.minimum(mean + half, bounds[1])[indices]) if len(seeds) > 1 else None,
        "samples_per_update": float(np.mean(batches)) if batches else None,
    }


def _curve_of_seed(runs: Sequence[Run], metric: str, updates: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the mean and the mean seconds of training, (updates,), of the runs that have a value there; else NaN."""
    curves = [run.series[metric] for run in runs]
    rows = [
        s.values if len(updates) == 1 else np.interp(updates, s.updates, s.values, left=np.nan, right=np.nan)
        for s in curves
    ]
    values = np.array(rows)  # (runs, updates)
    clocks = np.array([run.seconds(updates) for run in runs])
    return np.nanmean(values, axis=0), _mean_where(np.isfinite(values), clocks)


def _mean_where(is_counted: npt.NDArray[np.bool_], values: FloatArray) -> FloatArray:
    """Return the mean over the first dimension of what counts; NaN if nothing does, or a counted value is NaN."""
    return np.where(is_counted, values, 0.0).sum(axis=0) / is_counted.sum(axis=0)


def _clock(run: Run, limit: int) -> dict[str, Any] | None:
    """Return the seconds of training over updates, in few points. The page interpolates between them."""
    rate = run.series.get("perf/updates_per_second")
    if rate is None:
        return None
    indices = np.unique(np.linspace(0, len(rate.updates) - 1, min(_CLOCK_POINTS, limit)).astype(int))
    updates = np.concatenate(([0.0], rate.updates[indices]))
    return {"u": _plain(updates), "s": _plain(run.seconds(updates))}


def _plain(values: FloatArray) -> list[Any]:
    """Return numbers rounded to few digits, so that their JSON is short; None for numbers that are not finite.

    They keep a thousandth of the range of the later half, which may be a small part of a large number; of the whole
    range if the later half is constant.
    """
    finite = np.isfinite(values)
    if finite.all() and (values == np.rint(values)).all() and (np.abs(values) < _EXACT).all():
        return values.astype(int).tolist()
    sizes = np.floor(np.log10(np.where(finite & (values != 0), np.abs(values), 1.0)))
    later = np.arange(len(values)) >= len(values) // 2
    with np.errstate(over="ignore"):  # the largest float may round to infinity
        ranges = [float(np.ptp(part)) for part in (values[later & finite], values[finite]) if part.size]
        spread = next((one for one in ranges if one > 0), 0.0)
        places = 3 - math.floor(math.log10(spread)) if _TINY < spread < math.inf else math.inf  # of decimals
        power = np.clip(places, _DIGITS - 1 - sizes, _MAX_DIGITS - 1 - sizes)
        up, down = 10.0 ** np.clip(power, 0, 300), 10.0 ** np.maximum(-power, 0)
        has_digits = finite & (np.abs(values) > _TINY)  # of smaller ones `up` would overflow
        rounded = np.where(finite, values, 0.0)
        rounded[has_digits] = (np.rint(rounded * up / down) * down / up)[has_digits]
    shown = finite & np.isfinite(rounded)
    return [
        value if is_shown else None for value, is_shown in zip(rounded.tolist(), shown.tolist(), strict=True)
    ]
