"""Write metrics.jsonl, histograms.jsonl and summary.json into the run folder. Every run writes them."""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydrant.config.atomic_write import json_safe, replace_file, write_json
from hydrant.runs.folder import HISTOGRAMS, METRICS, SUMMARY, read_rows, read_summary
from hydrant.trackers.base import Histogram


class JsonLines:
    """A file of JSON objects, one per line, each with its `num_updates`.

    Args:
        source: the file with the rows up to `num_updates`, of this run or of the one that it continues. Later rows
            are dropped, because the updates are made again.
    """

    def __init__(self, path: Path, num_updates: int, source: Path) -> None:
        kept = [row for row in read_rows(source) if num_updates and row["num_updates"] <= num_updates]
        lines = "".join(json.dumps(row) + "\n" for row in kept)
        if not path.exists() or path.read_text(encoding="utf-8") != lines:
            replace_file(path, lines)
        self._file = path.open("r+b", buffering=0)
        self._size = self._file.seek(0, os.SEEK_END)  # of the complete rows
        self._pending: list[bytes] = []

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a row; it is in the file when this returns.

        Raises:
            OSError: it stays in memory until the next `append` or `flush`.
        """
        self._pending.append(json.dumps(json_safe(row)).encode() + b"\n")
        self.flush()

    def flush(self) -> None:
        """Write the pending rows. A row that a full disk cut off is written again from its start.

        Raises:
            OSError: the file cannot be written.
        """
        while self._pending:
            line = self._pending[0]
            self._file.seek(self._size)
            written = 0
            try:
                while written < len(line):
                    written += self._file.write(line[written:])
            except OSError as error:
                raise OSError(error.errno, error.strerror, self._file.name) from error
            self._size += written
            del self._pending[0]

    def close(self) -> None:
        self._file.close()


class Record:
    """Writes `metrics.jsonl`, a line per log point, and `summary.json`, replaced as a whole at every change.

    The first histograms create `histograms.jsonl`. NaN and infinity are written as `null`, because JSON has neither.
    """

    def __init__(self, folder: Path, num_updates: int, history: Path) -> None:
        """Continue the rows of the folder `history` at `num_updates`; later rows are dropped."""
        self._folder, self._num_updates, self._history = folder, num_updates, history
        self.metrics = self._open(METRICS)
        had_histograms = (history / HISTOGRAMS).exists() or (folder / HISTOGRAMS).exists()
        self._histograms = self._open(HISTOGRAMS) if had_histograms else None
        self.summary = read_summary(folder) if num_updates else {}  # only `update_summary` changes it

    def histograms(self, num_updates: int, histograms: Mapping[str, Histogram]) -> None:
        """Append a line of histograms.

        Raises:
            OSError: it stays in memory until the next call.
        """
        if self._histograms is None:
            self._histograms = self._open(HISTOGRAMS)
        content = {key: {"low": h.low, "high": h.high, "counts": h.counts} for key, h in histograms.items()}
        self._histograms.append({"num_updates": num_updates, "histograms": content})

    def update_summary(self, **fields: Any) -> None:
        """Set fields of the summary and write it."""
        self.summary.update(fields)
        write_json(self._folder / SUMMARY, self.summary)

    def close(self) -> None:
        self.metrics.close()
        if self._histograms is not None:
            self._histograms.close()

    def _open(self, name: str) -> JsonLines:
        return JsonLines(self._folder / name, self._num_updates, self._history / name)


def last_values(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the last value of every metric."""
    return {key: value for row in rows for key, value in row.items() if "/" in key}


def typical_value(rows: list[dict[str, Any]], key: str) -> float | None:
    """Return the median of a metric without its first value, because that includes compilation and warm-up."""
    values = [row[key] for row in rows if row.get(key) is not None]
    return statistics.median_low(values[1:] or values) if values else None
