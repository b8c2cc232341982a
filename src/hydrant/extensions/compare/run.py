"""`Run`: the data of one run that `hydrant compare` uses, from a run folder or from W&B, with its metrics as arrays."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hydrant.clock import Steps
from hydrant.config.metric_keys import LOSS_OF_BATCH

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Series:
    """The values of a metric after so many updates; NaN for values that were not finite."""

    updates: FloatArray
    values: FloatArray

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Series) or not np.array_equal(self.updates, other.updates):
            return False
        return np.array_equal(self.values, other.values, equal_nan=True)


def series_by_metric(rows: Iterable[Mapping[str, Any]]) -> dict[str, Series]:
    """Return the series of each metric in the rows of metrics.jsonl."""
    columns: dict[str, tuple[list[float], list[float | None]]] = {}
    for row in rows:
        num_updates = row["num_updates"]
        for key, value in row.items():
            if "/" in key:
                updates, values = columns.setdefault(key, ([], []))
                updates.append(num_updates)
                values.append(value)
    return {key: Series(*(np.array(axis, dtype=float) for axis in axes)) for key, axes in columns.items()}


def last_logged(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the time of the last row in unix seconds, 0 if unknown."""
    return float(rows[-1].get("time") or 0.0) if rows else 0.0


REPEAT = "repeat"
"""The state of a run that repeats the job of a counted run."""

SEVERAL = "several configs"
"""The state of a run that several configs trained, one after the other. It is in no group."""


@dataclass(frozen=True)
class Run:
    """A run, from any source."""

    name: str  # unique among the compared runs
    state: str  # a `RunStatus`, REPEAT or SEVERAL
    config: Mapping[str, Any]  # flat keys, and the option of each config group
    overrides: Mapping[str, str]  # by key, as written
    summary: Mapping[str, Any]
    series: Mapping[str, Series] = field(default_factory=dict[str, Series])  # by metric
    error: str = ""
    has_own_name: bool = False  # False for a job of a sweep, whose name consists of its overrides
    title: str = ""  # replaces the name where the titles of all runs differ; "": the name of the folder
    is_read_twice: bool = False  # from its folder and from W&B
    last_logged: float = 0.0  # the time of its last row, in unix seconds
    repeats: str = ""  # the name of the counted run with the same job
    folder: Path | None = None  # None: of a service such as W&B

    def __post_init__(self) -> None:
        if size := self.summary.get(LOSS_OF_BATCH):
            object.__setattr__(self, "config", {**self.config, LOSS_OF_BATCH: size})

    @property
    def batch_sizes(self) -> Steps[int] | None:
        """The samples of each update; None if they are unknown, as where a size begins at an epoch."""
        prefix = "global_batch_size."
        sizes = {key.removeprefix(prefix): n for key, n in self.config.items() if key.startswith(prefix)}
        if not all(begin.isdigit() for begin in sizes):
            return None
        if starts := sorted(sizes, key=int):
            return Steps(tuple(map(int, starts)), tuple(sizes[n] for n in starts))
        size = self.config.get("global_batch_size")  # without a config, the text of an override
        return Steps.constant(size) if isinstance(size, int) else None

    @property
    def samples_per_update(self) -> int | None:
        """The samples of every update; None if they are unknown or change."""
        sizes = self.batch_sizes
        return sizes.values[0] if sizes is not None and sizes.is_constant else None

    @property
    def wandb_id(self) -> str | None:
        return (self.summary.get("wandb") or {}).get("id")

    def seconds(self, updates: FloatArray) -> FloatArray:
        """Return the seconds of training after so many updates; NaN if the run did not log its speed."""
        rate = self.series.get("perf/updates_per_second")
        if rate is None:
            return np.full(len(updates), np.nan)
        durations = np.diff(rate.updates, prepend=0.0) / rate.values
        points = np.concatenate(([0.0], rate.updates)), np.concatenate(([0.0], np.cumsum(durations)))
        return np.interp(updates, *points)
