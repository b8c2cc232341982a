"""Metrics and schedules over updates, as arrays."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hydrant.errors import RecordError, first_line

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """The values of a metric after so many updates; NaN for values that were not finite."""

    updates: FloatArray
    values: FloatArray


def series_by_metric(rows: Iterable[Mapping[str, Any]]) -> dict[str, Series]:
    """Return the series of each metric in the rows of metrics.jsonl.

    Raises:
        RecordError: a value is not a number.
    """
    columns: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        num_updates = row["num_updates"]
        for key, value in row.items():
            if "/" in key:
                updates, values = columns.setdefault(key, ([], []))
                updates.append(num_updates)
                values.append(np.nan if value is None else value)
    return {key: _series(key, *column) for key, column in columns.items()}


def _series(name: str, updates: Sequence[Any], values: Sequence[Any]) -> Series:
    try:
        return Series(np.array(updates, dtype=float), np.array(values, dtype=float))
    except (ValueError, TypeError) as error:
        raise RecordError(f"{name} has a value that is not a number ({first_line(error)})") from error


def read_schedules(file: Path) -> dict[str, Series]:
    """Return the planned schedules by metric; empty for a run that has not ended.

    Raises:
        RecordError: the file is damaged.
    """
    if not file.exists():
        return {}
    try:
        plan = json.loads(file.read_bytes())
        return {f"optim/{name}": _series(name, plan["updates"], v) for name, v in plan["values"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecordError) as error:
        raise RecordError(f"{file} is damaged ({first_line(error)}); remove it") from error


def last_logged(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the time of the last row in unix seconds, 0 if unknown."""
    return float(rows[-1].get("time") or 0.0) if rows else 0.0
