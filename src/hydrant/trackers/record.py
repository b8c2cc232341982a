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


class Record:
    """`metrics.jsonl`, a line per log point, and `summary.json`, replaced as a whole at every change.

    A number that is NaN or infinite is written as `null`: JSON has no name for it.
    """

    def __init__(self, folder: Path, num_updates: int, history: Path) -> None:
        """Continue the rows of the folder `history` at `num_updates`; past it they are written again."""
        self._folder = folder
        self._begin(num_updates, history)
        self._metrics = (folder / "metrics.jsonl").open("r+b", buffering=0)
        self._size = self._metrics.seek(0, os.SEEK_END)  # of the whole rows
        self._waiting: list[bytes] = []
        self._summary = read_summary(folder) if num_updates else {}

    def log(self, row: Mapping[str, float]) -> None:
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
            self._metrics.seek(self._size)
            written = 0
            try:
                while written < len(line):
                    written += self._metrics.write(line[written:])
            except OSError as error:
                raise OSError(error.errno, error.strerror, self._metrics.name) from error
            self._size += written
            del self._waiting[0]

    def update_summary(self, **fields: Any) -> None:
        """Set fields of the summary and write it."""
        self._summary.update(fields)
        write_json(self._folder / "summary.json", self._summary)

    @property
    def summary(self) -> Mapping[str, Any]:
        return self._summary

    def close(self) -> None:
        self._metrics.close()

    def _begin(self, num_updates: int, history: Path) -> None:
        path = self._folder / "metrics.jsonl"
        kept = [row for row in read_metrics(history) if num_updates and row["num_updates"] <= num_updates]
        lines = "".join(json.dumps(row) + "\n" for row in kept)
        if not path.exists() or path.read_text(encoding="utf-8") != lines:
            replace_file(path, lines)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The whole rows of a run's metrics.jsonl; a line torn by a kill is left out."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]  # what follows the last newline is torn
    try:
        return [json.loads(line) for line in lines]
    except ValueError as error:
        raise RecordError(f"{path} is damaged ({first_line(error)}); remove the line, or the file") from error


def read_summary(folder: Path) -> dict[str, Any]:
    """A run's summary.json, empty where there is none."""
    path = folder / "summary.json"
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
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
