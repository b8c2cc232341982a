"""Read metrics.jsonl and histograms.jsonl: a row of each line."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from hydrant.errors import RecordError, first_line, shown
from hydrant.files.read_file import check_plain, parse_json, read_bytes
from hydrant.runs.folder import METRICS


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
    remedy = "; remove the line, or the file"
    content = read_bytes(path, remedy) or b""
    lines = content.split(b"\n")[:-1]  # what follows the last newline is incomplete: a kill has left it
    try:
        return [parse_row(line) for line in lines[:limit]]
    except ValueError as error:
        raise RecordError(f"{path} is damaged ({first_line(error)}){remedy}") from error


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
