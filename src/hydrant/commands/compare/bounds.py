"""The range of a metric, in which the intervals of its means stay: an accuracy is between 0 and 1."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from hydrant.commands.compare.run import Run
from hydrant.commands.compare.statistics import UNBOUNDED, Bounds
from hydrant.config.best import bounds_by_name

_ROUNDING = 1e-6


def bounds_of(metric: str, runs: Iterable[Run]) -> Bounds:
    """Return the bounds of a metric by the words in its name or in that of its class in `task.metrics`.

    A metric whose values are outside has none: it may be an accuracy in percent.
    """
    runs = list(runs)
    key = f"task.metrics.{metric.partition('/')[2]}._target_"
    names = [metric, *{str(run.config[key]).rpartition(".")[2] for run in runs if key in run.config}]
    low, high = next((found for name in names if (found := bounds_by_name(name)) is not None), UNBOUNDED)
    values = [run.series[metric].values for run in runs if metric in run.series]
    finite = [column[np.isfinite(column)] for column in values]
    is_inside = all(((low - _ROUNDING <= v) & (v <= high + _ROUNDING)).all() for v in finite)
    return (low, high) if is_inside else UNBOUNDED
