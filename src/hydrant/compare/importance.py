"""Which keys the result depends on: a random forest, and what it loses when a key's values are shuffled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LEAST_RUNS = 6
LEAST_FIT = 0.2
NUM_TREES = 100
NUM_SHUFFLES = 10


@dataclass(frozen=True)
class Importance:
    """The loss of R2 when a key is shuffled (mean and standard deviation over the shuffles), the greatest first.

    `fit` is the forest's R2 on the runs that a tree has not seen; near 0 or below, the rest tells nothing.
    """

    keys: Sequence[tuple[str, float, float]]
    fit: float
    num_runs: int

    @property
    def is_reliable(self) -> bool:
        return self.fit >= LEAST_FIT


def importance(columns: Mapping[str, Sequence[Any]], results: Sequence[float]) -> Importance | None:
    """Of each key for the results; None where there are too few runs or only one key to tell anything."""
    if len(results) < LEAST_RUNS or len(columns) < 2 or len(set(results)) < 2:
        return None
    from sklearn.ensemble import RandomForestRegressor  # slow to import
    from sklearn.inspection import permutation_importance

    table = np.array([_numbers(values) for values in columns.values()]).T
    scaled = (np.array(results) - np.mean(results)) / np.std(results)
    forest = RandomForestRegressor(NUM_TREES, oob_score=True, random_state=0).fit(table, scaled)
    found: Any = permutation_importance(forest, table, scaled, n_repeats=NUM_SHUFFLES, random_state=0)
    rows = [
        (key, float(mean), float(std))
        for key, mean, std in zip(columns, found.importances_mean, found.importances_std, strict=True)
    ]
    return Importance(sorted(rows, key=lambda row: -row[1]), float(forest.oob_score_), len(results))


def _numbers(values: Sequence[Any]) -> list[float]:
    """A key's values as numbers: themselves where all are, else their places in the alphabet."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [float(value) for value in values]
    places = {text: place for place, text in enumerate(sorted(set(map(str, values))))}
    return [places[str(value)] for value in values]
