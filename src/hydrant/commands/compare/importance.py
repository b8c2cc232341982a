"""The importance of each key for the result, by a random forest and permutation of the key's values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MIN_RUNS = 6
MIN_FIT = 0.2
NUM_TREES = 100
NUM_SHUFFLES = 10


@dataclass(frozen=True)
class Importance:
    """For each key the loss of R2 when it is shuffled: mean and standard deviation over the shuffles, largest first.

    `fit` is the R2 of the forest on unseen runs (out of bag). If it is near 0 or below, the importances mean nothing.
    """

    keys: Sequence[tuple[str, float, float]]
    fit: float
    num_runs: int

    @property
    def is_reliable(self) -> bool:
        return self.fit >= MIN_FIT


def importance(columns: Mapping[str, Sequence[Any]], results: Sequence[float]) -> Importance | None:
    """Return the importance of each key for the results; None if there are too few runs, keys or different results."""
    if len(results) < MIN_RUNS or len(columns) < 2 or len(set(results)) < 2:
        return None
    from sklearn.ensemble import RandomForestRegressor  # slow to import
    from sklearn.inspection import permutation_importance

    table = np.array([_numbers(values) for values in columns.values()]).T
    scaled = (np.array(results) - np.mean(results)) / np.std(results)
    forest = RandomForestRegressor(NUM_TREES, oob_score=True, random_state=0).fit(table, scaled)
    loss: Any = permutation_importance(forest, table, scaled, n_repeats=NUM_SHUFFLES, random_state=0)
    rows = [
        (key, float(mean), float(std))
        for key, mean, std in zip(columns, loss.importances_mean, loss.importances_std, strict=True)
    ]
    return Importance(sorted(rows, key=lambda row: -row[1]), float(forest.oob_score_), len(results))


def _numbers(values: Sequence[Any]) -> list[float]:
    """Return a key's values if all are numbers, else their positions in alphabetical order."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return [float(value) for value in values]
    places = {text: place for place, text in enumerate(sorted(set(map(str, values))))}
    return [places[str(value)] for value in values]
