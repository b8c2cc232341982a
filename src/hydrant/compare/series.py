"""What a run folder holds over updates, as arrays."""

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
    """Values of a metric, NaN where one was not finite, and after how many updates."""

    updates: FloatArray
    values: FloatArray


def by_metric(rows: Iterable[Mapping[str, Any]]) -> dict[str, Series]:
    """The rows of a record by metric.

    Raises:
        RecordError: a value is no number.
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
        raise RecordError(f"{name} has a value that is no number ({first_line(error)})") from error


def read_schedules(file: Path) -> dict[str, Series]:
    """What a run planned, exactly; empty where it has not got to its end.

    Raises:
        RecordError: the file is damaged.
    """
    if not file.exists():
        return {}
    try:
        told = json.loads(file.read_bytes())
        found = {f"optim/{name}": _series(name, told["updates"], v) for name, v in told["values"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecordError) as error:
        raise RecordError(f"{file} is damaged ({first_line(error)}); remove it") from error
    return found


def last_logged(rows: Sequence[Mapping[str, Any]]) -> float:
    """When the last row of a record was logged, in unix seconds; 0 where it does not say."""
    return float(rows[-1].get("time") or 0.0) if rows else 0.0
