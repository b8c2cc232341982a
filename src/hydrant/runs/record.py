"""Write metrics.jsonl, histograms.jsonl and summary.json into the run folder. Every run writes them.

Read metrics.jsonl and histograms.jsonl: a row of each line.
"""

import contextlib
import json
import math
import os
import statistics
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import Any, BinaryIO

from hydrant.errors import RecordError, first_line, log, naming
from hydrant.files.on_disk import json_safe, json_text, open_regular, replace_file, sync
from hydrant.files.read_file import MAX_BYTES, check_plain, read_bytes
from hydrant.records import parse_json
from hydrant.runs.folder import HISTOGRAMS, HYDRA, METRICS, SUMMARY, RunFolder
from hydrant.runs.lock import check_held
from hydrant.trackers import Histogram


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl, without a last line that is incomplete.

    Raises:
        RecordError: a line is damaged.
    """
    return read_rows(folder / METRICS)


def read_rows(path: Path, limit: int | None = None) -> list[dict[str, Any]]:
    """Return the first rows of a file of JSON lines, without a last line that is incomplete; [] if there is no file.

    Raises:
        RecordError: a line is damaged or has more than 32 MiB, or this is no file, or a link to nothing.
    """
    try:
        with open_regular(path) as file:
            return [parse_row(line) for line in islice(_whole_lines(file), limit)]
    except (OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError | NotADirectoryError) and not path.is_symlink():
            return []
        cause = (error.strerror if isinstance(error, OSError) else None) or first_line(error)
        raise RecordError(f"{path} is damaged ({cause})", remedy="remove the line, or the file") from error


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the complete lines. Raises ValueError for one of more than 32 MiB."""
    while (line := file.readline(MAX_BYTES)).endswith(b"\n"):
        yield line
    if len(line) == MAX_BYTES:
        raise ValueError(f"a line has more than {MAX_BYTES:,} bytes")


def parse_row(line: bytes) -> dict[str, Any]:
    """Parse a line of metrics.jsonl or histograms.jsonl.

    Raises:
        ValueError: it is no JSON object, its `num_updates` is no count, or a metric is neither a number nor null.
    """
    row: Any = parse_json(line)
    if not isinstance(row, dict) or type(row.get("num_updates")) is not int or row["num_updates"] < 0:
        raise ValueError("a line without num_updates")
    for key, value in row.items():
        if type(value) not in (int, float, NoneType) and ("/" in key or key == "time"):
            raise ValueError(f"{key} is a {type(value).__name__}, not a number")
    if b"\\u" in line:
        check_plain(row)
    return row


@dataclass(frozen=True)
class History:
    """The rows that a run continues: those of its checkpoint.

    Args:
        run: the folder that has these rows: of this run, or of the run that it continues.
        num_updates: of the checkpoint. Rows of later updates are dropped, because the updates are made again.
        num_rows: the number of rows by file, if the checkpoint records it. The bytes after these rows are not read,
            because after a power failure they may be anything.
    """

    run: RunFolder
    num_updates: int = 0
    num_rows: Mapping[str, int] = field(default_factory=dict[str, int])

    def read(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a file, and log if some are missing.

        Raises:
            RecordError: a line is damaged.
        """
        if not self.num_updates:
            return []
        file, expected = self.run.path / name, self.num_rows.get(name)
        rows = [row for row in read_rows(file, expected) if row["num_updates"] <= self.num_updates]
        if expected is not None and len(rows) != expected:
            log.warning(
                "%s has %d of the %d rows that the checkpoint of update %d counts; the others are lost",
                *(file, len(rows), expected, self.num_updates),
            )
        return rows

    def metrics(self) -> list[dict[str, float]]:
        """Return the rows of metrics.jsonl, whose nulls stand for NaN.

        Raises:
            RecordError: a line is damaged.
        """
        rows = self.read(METRICS)
        return [{key: math.nan if value is None else value for key, value in row.items()} for row in rows]


class JsonLines:
    """A file of JSON objects, one per line, each with its `num_updates`. It begins with the rows of the history.

    One thread appends, another one may sync.
    """

    def __init__(self, path: Path, history: History) -> None:
        kept = history.read(path.name)
        lines = "".join(json.dumps(row) + "\n" for row in kept).encode()
        if read_bytes(path) != lines:
            replace_file(path, lines.decode())
        self._path, self._file = path, path.open("r+b", buffering=0)
        self._size = self._file.seek(0, os.SEEK_END)  # of the complete rows
        self._pending: list[bytes] = []
        self._flushing = threading.Lock()
        self.num_rows = len(kept)  # with those that are pending

    def append(self, row: Mapping[str, Any]) -> None:
        """Append a row; it is in the file when this returns.

        Raises:
            OSError: it stays in memory until the next `append`, `flush` or `sync`.
        """
        self._pending.append(json.dumps(json_safe(row)).encode() + b"\n")
        self.num_rows += 1
        self.flush()

    def flush(self) -> None:
        """Write the pending rows. A row that a full disk cut off is written again from its start.

        Raises:
            OSError: the file cannot be written.
        """
        with self._flushing:
            while self._pending:
                line = self._pending[0]
                self._file.seek(self._size)
                written = 0
                with naming(self._path):
                    while written < len(line):
                        written += self._file.write(line[written:])
                self._size += written
                del self._pending[0]

    def sync(self) -> None:
        """Flush the rows to disk.

        Raises:
            OSError: the file cannot be written.
        """
        self.flush()
        with naming(self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class RunRecord:
    """Writes `metrics.jsonl`, a line per log point, and `summary.json`, replaced as a whole at every change.

    The first histograms create `histograms.jsonl`. NaN and infinity are written as `null`, because JSON has neither.
    """

    def __init__(self, folder: Path, history: History) -> None:
        self._folder, self._history = folder, history
        self.metrics = self._open(METRICS)
        had_histograms = (history.run.path / HISTOGRAMS).exists() or (folder / HISTOGRAMS).exists()
        self._histograms = self._open(HISTOGRAMS) if had_histograms else None
        is_continued = history.num_updates and history.run.path == folder
        self.summary = dict(history.run.recorded) if is_continued else {}  # only `update_summary` changes it
        self._written = ""  # the text of the summary
        self._parents_are_synced = False

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
        """Set fields of the summary and write it, if that changes it.

        Raises:
            FolderLost: the folder was removed or replaced.
            OSError: the summary cannot be written.
        """
        check_held(self._folder)
        self.summary.update(fields)
        text = json_text(self.summary)
        if text != self._written:
            replace_file(self._folder / SUMMARY, text)
            self._written = text

    def num_rows(self) -> Mapping[str, int]:
        """Return the number of rows by file."""
        return {METRICS: 0, HISTOGRAMS: 0} | {name: file.num_rows for name, file in self._files().items()}

    def sync(self) -> None:
        """Flush the rows and the names in the run folder to disk.

        Raises:
            OSError: a row cannot be written.
        """
        for file in self._files().values():
            file.sync()
        sync(self._folder)
        if not self._parents_are_synced:
            sync(self._folder / HYDRA)
            for parent in self._folder.resolve().parents:
                with contextlib.suppress(OSError):  # one that this run did not create may be unreadable
                    sync(parent)
            self._parents_are_synced = True

    def close(self) -> None:
        """Close the files, and flush the names in the run folder to disk.

        Raises:
            FolderLost: the folder was removed or replaced.
            OSError: the disk fails.
        """
        for file in self._files().values():
            file.close()
        check_held(self._folder)
        sync(self._folder)

    def _files(self) -> dict[str, JsonLines]:
        files = {METRICS: self.metrics, HISTOGRAMS: self._histograms}
        return {name: file for name, file in files.items() if file is not None}

    def _open(self, name: str) -> JsonLines:
        return JsonLines(self._folder / name, self._history)


def last_values(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the last value of every metric."""
    return {key: value for row in rows for key, value in row.items() if "/" in key}


def typical_value(rows: list[dict[str, Any]], key: str) -> float | None:
    """Return the median of a metric without its first value, because that includes compilation and warm-up."""
    values = [row[key] for row in rows if row.get(key) is not None]
    return statistics.median_low(values[1:] or values) if values else None
