"""Read metrics.jsonl and histograms.jsonl: a row of each line."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from hydrant.errors import RecordError, first_line, shown
from hydrant.files.read_file import MAX_BYTES, check_plain, parse_json
from hydrant.files.regular_file import open_regular
from hydrant.runs.folder import METRICS

_OVERLAP = 64
"""Bytes before the new rows that must be as they were. Else the file was cut and written again."""


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl, without a last line that is incomplete.

    Raises:
        RecordError: a line is damaged.
    """
    return read_rows(folder / METRICS)


def read_rows(path: Path, limit: int | None = None) -> list[dict[str, Any]]:
    """Return the first rows of a file of JSON lines, without a last line that is incomplete; [] if there is no file.

    Raises:
        RecordError: a line is damaged.
    """
    return GrowingRows(path).read(limit)


class GrowingRows:
    """The rows of a file of JSON lines. Only those that were appended since are read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode, self._size, self._end = 0, 0, b""  # up to the last row, and the bytes there
        self._rows: list[dict[str, Any]] = []

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return all rows, or the first of a file that is read once, without a last line that is incomplete.

        Raises:
            RecordError: a line is damaged or has more than 32 MiB, or this is no file, or a link to nothing.
        """
        remedy = "; remove the line, or the file"
        try:
            new = [parse_row(line) for line in islice(self._new_lines(), limit)]
        except OSError as error:
            self._begin(0)
            if isinstance(error, FileNotFoundError | NotADirectoryError) and not self._path.is_symlink():
                return []
            raise RecordError(f"{self._path} cannot be read ({error.strerror or error}){remedy}") from error
        except ValueError as error:
            self._begin(0)
            raise RecordError(f"{self._path} is damaged ({first_line(error)}){remedy}") from error
        self._rows = [*self._rows, *new]
        return self._rows

    def _new_lines(self) -> Iterator[bytes]:
        with open_regular(self._path) as file:
            inode = os.fstat(file.fileno()).st_ino
            file.seek(max(self._size - len(self._end), 0))
            if inode != self._inode or file.read(len(self._end)) != self._end:
                self._begin(inode)
                file.seek(0)
            while (line := file.readline(MAX_BYTES)).endswith(b"\n"):
                self._size, self._end = self._size + len(line), (self._end + line)[-_OVERLAP:]
                yield line
            if len(line) == MAX_BYTES:
                raise ValueError(f"a line has more than {MAX_BYTES:,} bytes")

    def _begin(self, inode: int) -> None:
        self._inode, self._size, self._end, self._rows = inode, 0, b"", []


def parse_row(line: bytes) -> dict[str, Any]:
    """Parse a line of metrics.jsonl or histograms.jsonl.

    Raises:
        ValueError: it is no JSON object, its `num_updates` is no count, or a metric is neither a number nor null.
    """
    row: Any = parse_json(line)
    if not isinstance(row, dict) or type(row.get("num_updates")) is not int or row["num_updates"] < 0:
        raise ValueError("a line without num_updates")
    for key, value in row.items():
        is_number = type(value) in (int, float) and math.isfinite(value)
        if not is_number and value is not None and ("/" in key or key == "time"):
            raise ValueError(f"{key} needs a number, not {shown(value):.40}")
    if b"\\u" in line:
        check_plain(row)
    return row
