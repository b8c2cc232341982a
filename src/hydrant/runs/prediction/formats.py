"""The formats of files with predictions, by their endings."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from hydrant.checks import unknown_name
from hydrant.files.atomic_write import json_safe
from hydrant.files.csv_text import as_csv
from hydrant.runs.prediction.prediction import Prediction
from hydrant.runs.prediction.table import Table
from hydrant.training.prediction import NUMBERS, Arrays

Format = Callable[[IO[bytes], Prediction, Iterable[Arrays]], int]
"""Writes the arrays of at least one batch into a file, and returns the number of samples."""


def format_of(out: Path) -> Format:
    """Return the format of a file by its name.

    Raises:
        ConfigError: its ending is unknown.
    """
    if out.suffix not in _FORMATS:
        raise unknown_name("--out", "ending", out.suffix or out.name, _FORMATS)
    return _FORMATS[out.suffix]


def csv_text(rows: Any) -> str:
    """Return rows as lines of CSV."""
    return as_csv(rows, end="\n")


def _write_csv(file: IO[bytes], prediction: Prediction, batches: Iterable[Arrays]) -> int:
    count = 0
    for table, arrays in _tabled(prediction, batches):
        rows = [*([] if count else [table.columns]), *table.rows(arrays)]
        file.write(_encoded(csv_text(rows)))
        count += len(arrays[NUMBERS])
    return count


def _write_jsonl(file: IO[bytes], prediction: Prediction, batches: Iterable[Arrays]) -> int:
    count = 0
    for table, arrays in _tabled(prediction, batches):
        for row in table.rows(arrays):
            file.write(_encoded(json.dumps(json_safe(dict(zip(table.columns, row, strict=True)))) + "\n"))
            count += 1
    return count


def _tabled(prediction: Prediction, batches: Iterable[Arrays]) -> Iterator[tuple[Table, Arrays]]:
    """Yield the arrays of each batch with the table of all."""
    table: Table | None = None
    for arrays in batches:
        table = table or prediction.table(arrays)
        yield table, arrays


def _write_npz(file: IO[bytes], prediction: Prediction, batches: Iterable[Arrays]) -> int:
    parts = list(batches)
    arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    inputs, class_names = prediction.inputs, prediction.saved.plan.data.class_names
    numbers = arrays.pop(NUMBERS).tolist()
    head = {inputs.column: np.array([inputs.name_of(number) for number in numbers])}
    if class_names is not None:
        head["class_names"] = np.array(class_names)
    with zipfile.ZipFile(file, "w") as archive:  # `numpy.savez` cannot name an array `file`
        for name, array in {**head, **arrays}.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:  # its time is always 1980
                np.lib.format.write_array(member, array, allow_pickle=False)
    return len(numbers)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # names of files may be any bytes


_FORMATS: dict[str, Format] = {".csv": _write_csv, ".jsonl": _write_jsonl, ".npz": _write_npz}
