"""The record in the run folder: metrics.jsonl and summary.json. Always written; it is the truth."""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydrant.errors import RecordError, first_line
from hydrant.redaction import redacted
from hydrant.trackers.base import Histogram

METRICS, HISTOGRAMS = "metrics.jsonl", "histograms.jsonl"


class Rows:
    """A file of JSON objects, a line each, which begin with a number of updates.

    Args:
        source: the rows until `num_updates`, of this run or of the one it goes on from; later ones are made again.
    """

    def __init__(self, path: Path, num_updates: int, source: Path) -> None:
        kept = [row for row in read_rows(source) if num_updates and row["num_updates"] <= num_updates]
        lines = "".join(json.dumps(row) + "\n" for row in kept)
        if not path.exists() or path.read_text(encoding="utf-8") != lines:
            replace_file(path, lines)
        self._file = path.open("r+b", buffering=0)
        self._size = self._file.seek(0, os.SEEK_END)  # of the whole rows
        self._waiting: list[bytes] = []

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a row; it is in the file when this returns.

        Raises:
            OSError: it waits in memory, for the next one or for `flush`.
        """
        self._waiting.append(json.dumps(finite(row)).encode() + b"\n")
        self.flush()

    def flush(self) -> None:
        """Write the rows that wait. What a full disk took of a row is written over.

        Raises:
            OSError: it cannot be written.
        """
        while self._waiting:
            line = self._waiting[0]
            self._file.seek(self._size)
            written = 0
            try:
                while written < len(line):
                    written += self._file.write(line[written:])
            except OSError as error:
                raise OSError(error.errno, error.strerror, self._file.name) from error
            self._size += written
            del self._waiting[0]

    def close(self) -> None:
        self._file.close()


class Record:
    """`metrics.jsonl`, a line per log point, and `summary.json`, replaced as a whole at every change.

    Histograms go into `histograms.jsonl`, which is there if there are any. A number that is NaN or infinite is written
    as `null`: JSON has no name for it.
    """

    def __init__(self, folder: Path, num_updates: int, history: Path) -> None:
        """Continue the rows of the folder `history` at `num_updates`; past it they are written again."""
        self._folder, self._num_updates, self._history = folder, num_updates, history
        self._metrics = self._rows(METRICS)
        had_histograms = (history / HISTOGRAMS).exists() or (folder / HISTOGRAMS).exists()
        self._histograms = self._rows(HISTOGRAMS) if had_histograms else None
        self._summary = read_summary(folder) if num_updates else {}

    def log(self, row: Mapping[str, float]) -> None:
        """Append a row of metrics; it is in the file when this returns.

        Raises:
            OSError: it waits in memory, for the next one or for `flush`.
        """
        self._metrics.append(row)

    def histograms(self, num_updates: int, histograms: Mapping[str, Histogram]) -> None:
        """Append a line of histograms.

        Raises:
            OSError: it waits in memory for the next one.
        """
        if self._histograms is None:
            self._histograms = self._rows(HISTOGRAMS)
        own = {key: {"low": h.low, "high": h.high, "counts": h.counts} for key, h in histograms.items()}
        self._histograms.append({"num_updates": num_updates, "histograms": own})

    def flush(self) -> None:
        """Write the metrics that wait.

        Raises:
            OSError: they cannot be written.
        """
        self._metrics.flush()

    def update_summary(self, **fields: Any) -> None:
        """Set fields of the summary and write it."""
        self._summary.update(fields)
        write_json(self._folder / "summary.json", self._summary)

    @property
    def summary(self) -> Mapping[str, Any]:
        return self._summary

    def close(self) -> None:
        self._metrics.close()
        if self._histograms is not None:
            self._histograms.close()

    def _rows(self, name: str) -> Rows:
        return Rows(self._folder / name, self._num_updates, self._history / name)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The whole rows of a run's metrics.jsonl; a line torn by a kill is left out."""
    return read_rows(folder / METRICS)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole rows of a file of JSON lines; a line torn by a kill is left out.

    Raises:
        RecordError: a line is damaged.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]  # what follows the last newline is torn
    try:
        return [row_of(line) for line in lines]
    except ValueError as error:
        raise RecordError(f"{path} is damaged ({first_line(error)}); remove the line, or the file") from error


def row_of(line: bytes) -> dict[str, Any]:
    """A line as a row.

    Raises:
        ValueError: it is none.
    """
    row: Any = json.loads(line)
    if not (isinstance(row, dict) and isinstance(row.get("num_updates"), int | float)):
        raise ValueError("a line without num_updates")
    return row


def read_summary(folder: Path) -> dict[str, Any]:
    """A run's summary.json, empty where there is none.

    Raises:
        RecordError: it is damaged.
    """
    path = folder / "summary.json"
    try:
        summary: Any = json.loads(path.read_bytes()) if path.exists() else {}
        if not isinstance(summary, dict):
            raise ValueError("no object")
        return summary
    except ValueError as error:
        told = f"{path} is damaged ({first_line(error)}); remove it, and the run goes on from its checkpoints"
        raise RecordError(told) from error


def last_values(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The last value of every metric."""
    merged: dict[str, Any] = {}
    for row in rows:
        merged |= row
    return {key: value for key, value in merged.items() if "/" in key}


def typical(rows: list[dict[str, Any]], key: str) -> float | None:
    """The median of a metric without its first value, which holds compilation and other warm-up."""
    values = [row[key] for row in rows if row.get(key) is not None]
    return statistics.median_low(values[1:] or values) if values else None


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file as a whole; without secrets."""
    replace_file(path, json.dumps(redacted(finite(value)), indent=2) + "\n")


def replace_file(path: Path, text: str) -> None:
    """Write a text file aside, flush it to disk and rename it: a kill leaves the old one or the new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise


def finite(value: Any) -> Any:
    """A value as JSON can say it: numbers that are not finite are None."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {key: finite(item) for key, item in value.items()}
        case list() | tuple():
            return [finite(item) for item in value]
        case _:
            return value
