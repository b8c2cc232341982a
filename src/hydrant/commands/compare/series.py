"""Metrics and schedules over updates, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

from hydrant.errors import RecordError
from hydrant.files.read_file import read_json

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """The values of a metric after so many updates; NaN for values that were not finite."""

    updates: FloatArray
    values: FloatArray


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
    return {key: _series(*column) for key, column in columns.items()}


def _series(updates: Sequence[float], values: Sequence[float | None]) -> Series:
    return Series(np.array(updates, dtype=float), np.array(values, dtype=float))  # None becomes NaN


class _Plan(TypedDict):
    updates: list[float]
    values: dict[str, list[float | None]]


def read_schedules(file: Path) -> dict[str, Series]:
    """Return the planned schedules by metric; empty for a run that has not ended.

    Raises:
        RecordError: the file is damaged.
    """
    remedy = "; remove it"
    plan = read_json(file, _Plan, remedy)
    if plan is None:
        return {}
    updates, values = plan["updates"], plan["values"]
    for name, curve in values.items():
        if len(curve) != len(updates):
            counts = f"{name} has {len(curve)} values for {len(updates)} updates"
            raise RecordError(f"{file} is damaged ({counts}){remedy}")
    return {f"optim/{name}": _series(updates, curve) for name, curve in values.items()}


def last_logged(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the time of the last row in unix seconds, 0 if unknown."""
    return float(rows[-1].get("time") or 0.0) if rows else 0.0
