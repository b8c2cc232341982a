"""Curves for a page: every run's, and each group's mean with its interval, thinned to what a picture can show."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from hydrant.compare.comparison import Comparison, mode_of
from hydrant.compare.series import FloatArray, Series
from hydrant.compare.sources import Run
from hydrant.compare.statistics import CONFIDENCE

NUM_POINTS = 400_000
"""So many points a page holds, shared by all its curves."""

_FEWEST, _MOST = 100, 2000  # points of a curve
_DIGITS = 6  # significant
_CLOCK_POINTS = 64
_MEASURED = ("grad_norm", "loss_scale", "num_skipped")  # what else is logged of an optimizer


def curves(comparison: Comparison) -> dict[str, Any]:
    """Per metric the curves of the runs and of the groups, in their order; None where there is none."""
    c = comparison
    metrics = _metrics(c)
    num_curves = len(metrics) * (len(c.runs) + 2 * len(c.groups))  # a group's has an interval too
    limit = min(max(NUM_POINTS // max(num_curves, 1), _FEWEST), _MOST)
    counted = [[run for run in group.runs if c.goal.counts(run)] for group in c.groups]
    return {
        "metrics": metrics,
        "limit": limit,
        "is_thinned": any(len(s.updates) > limit for run in c.runs for s in run.series.values()),
        "runs": {m: [_thinned(run.series.get(m), limit) for run in c.runs] for m in metrics},
        "groups": {m: [_mean_curve(runs, m, limit) for runs in counted] for m in metrics},
        "schedules": {m: [_schedules(g.runs, m, limit) for g in c.groups] for m in _scheduled(c)},
        "modes": {m: c.goal.mode if m == c.goal.metric else mode_of(m) for m in metrics},
        "clocks": [_clock(run) for run in c.runs],
        "samples_per_update": [run.samples_per_update for run in c.runs],
    }


def _metrics(c: Comparison) -> list[str]:
    """The metrics of the runs, that which is compared first; what torch.compile counted is in the table."""
    found = {key for run in c.runs for key in run.series if not key.startswith("compile/")}
    order = ("val", "val_ema", "train", "optim", "perf")
    places = {prefix: place for place, prefix in enumerate(order)}
    return sorted(
        found, key=lambda key: (key != c.goal.metric, places.get(key.partition("/")[0], len(order)), key)
    )


def _scheduled(c: Comparison) -> list[str]:
    """The fields that have a schedule, the learning rate first."""
    found = {key for run in c.runs for key in (*run.schedules, *run.series)}
    own = {key for key in found if key.startswith("optim/") and not key.endswith(_MEASURED)}
    return sorted(own, key=lambda key: (key != "optim/lr", key))


def _schedules(runs: Sequence[Run], metric: str, limit: int) -> list[dict[str, Any]]:
    """The different schedules of a group: as they were planned, or else as its runs logged them."""
    planned = [_thinned(run.schedules[metric], limit) for run in runs if metric in run.schedules]
    logged = [_thinned(run.series[metric], limit) for run in runs if metric in run.series]
    distinct = {json.dumps(curve): curve for curve in planned or logged if curve is not None}
    return list(distinct.values())


def extremes(values: FloatArray, limit: int) -> list[int]:
    """Which of the values a picture needs: the least and the greatest of each of `limit` / 2 intervals."""
    if len(values) <= limit:
        return list(range(len(values)))
    size = -(-len(values) // (limit // 2))  # of an interval
    padded = np.pad(values, (0, -len(values) % size), constant_values=np.nan).reshape(-1, size)
    least = np.where(np.isfinite(padded), padded, np.inf).argmin(axis=1)
    greatest = np.where(np.isfinite(padded), padded, -np.inf).argmax(axis=1)
    starts = size * np.arange(len(padded))
    picked = np.concatenate((starts + least, starts + greatest, [0, len(values) - 1]))
    return np.unique(picked).tolist()


def _thinned(series: Series | None, limit: int) -> dict[str, Any] | None:
    if series is None:
        return None
    picked = extremes(series.values, limit)
    return {"u": _plain(series.updates[picked]), "v": _plain(series.values[picked])}


def _mean_curve(runs: Sequence[Run], metric: str, limit: int) -> dict[str, Any] | None:
    """The mean over the runs that have a result, wherever one of them has a value: between two, on the line."""
    own = [(run, run.series[metric]) for run in runs if metric in run.series]
    if not own:
        return None
    updates = np.unique(np.concatenate([series.updates for _, series in own]))
    table = np.array(
        [np.interp(updates, s.updates, s.values, left=np.nan, right=np.nan) for _, s in own]
    )  # (runs, updates)
    num = np.isfinite(table).sum(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # where there is none, or one: NaN, as it should be
        mean, std = np.nanmean(table, axis=0), np.nanstd(table, axis=0, ddof=1)
        half = stats.t.ppf((1 + CONFIDENCE) / 2, num - 1) * std / np.sqrt(num)
        seconds = np.mean([run.seconds(updates) for run, _ in own], axis=0)
    batches = [run.samples_per_update for run, _ in own if run.samples_per_update is not None]
    picked = extremes(mean, limit)
    return {
        "u": _plain(updates[picked]),
        "s": _plain(seconds[picked]),
        "n": int(num.max()),
        "v": _plain(mean[picked]),
        "low": _plain((mean - half)[picked]) if len(own) > 1 else None,
        "high": _plain((mean + half)[picked]) if len(own) > 1 else None,
        "samples_per_update": float(np.mean(batches)) if batches else None,
    }


def _clock(run: Run) -> dict[str, Any] | None:
    """When a run had made how many updates: enough points for a line between them."""
    pace = run.series.get("perf/updates_per_second")
    if pace is None:
        return None
    picked = np.unique(np.linspace(0, len(pace.updates) - 1, _CLOCK_POINTS).astype(int))
    updates = np.concatenate(([0.0], pace.updates[picked]))
    return {"u": _plain(updates), "s": _plain(run.seconds(updates))}


def _plain(values: FloatArray) -> list[Any]:
    """Numbers as short as JSON can say them; None for those that are not finite."""
    finite = np.isfinite(values)
    if finite.all() and (values == np.rint(values)).all():
        return values.astype(int).tolist()
    power = _DIGITS - 1 - np.floor(np.log10(np.where(finite & (values != 0), np.abs(values), 1.0)))
    up, down = 10.0 ** np.maximum(power, 0), 10.0 ** np.maximum(-power, 0)
    rounded = (np.rint(np.where(finite, values, 0.0) * up / down) * down / up).tolist()
    return [value if is_finite else None for value, is_finite in zip(rounded, finite.tolist(), strict=True)]
