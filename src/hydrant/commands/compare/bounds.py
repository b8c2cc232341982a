"""The range of a metric, in which the intervals of its means stay: an accuracy is between 0 and 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hydrant.commands.compare.run import Run
from hydrant.commands.compare.statistics import Bounds
from hydrant.config import best


def bounds_of(metric: str, runs: Sequence[Run]) -> Bounds:
    """Return the bounds of a metric, by all of its values."""
    values = [run.series[metric].values for run in runs if metric in run.series]
    finite = [column[np.isfinite(column)] for column in values]
    ends = [float(end) for column in finite if len(column) for end in (column.min(), column.max())]
    return best.bounds_of(metric, [run.config for run in runs], ends)
