"""The formats of files with predictions, by their endings."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from hydrant.checks import unknown_name
from hydrant.files.atomic_write import json_safe
from hydrant.files.csv_text import as_csv
from hydrant.runs.prediction.npz import write_joined
from hydrant.runs.prediction.partial_file import PartialFile
from hydrant.runs.prediction.prediction import Prediction
from hydrant.training.prediction import NUMBERS, Arrays


@dataclass(frozen=True)
class Format:
    """How predictions are written.

    Args:
        check: raises a ConfigError if arrays like those of a batch cannot be written.
        write: writes the predictions of a partial file.
    """

    check: Callable[[Prediction, Arrays], object]
    write: Callable[[IO[bytes], PartialFile, Prediction], None]


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


def _write_csv(file: IO[bytes], partial: PartialFile, prediction: Prediction) -> None:
    table = prediction.table(partial.last)
    file.write(_encoded(csv_text([table.columns])))
    for arrays in partial.records():
        file.write(_encoded(csv_text(table.rows(arrays))))


def _write_jsonl(file: IO[bytes], partial: PartialFile, prediction: Prediction) -> None:
    table = prediction.table(partial.last)
    for arrays in partial.records():
        for row in table.rows(arrays):
            file.write(_encoded(json.dumps(json_safe(dict(zip(table.columns, row, strict=True)))) + "\n"))


def _write_npz(file: IO[bytes], partial: PartialFile, prediction: Prediction) -> None:
    inputs, class_names = prediction.inputs, prediction.saved.plan.data.class_names
    numbers = np.concatenate([arrays[NUMBERS] for arrays in partial.records()])
    whole = {inputs.column: np.array([inputs.name_of(number) for number in numbers.tolist()])}
    if class_names is not None:
        whole["class_names"] = np.array(class_names)
    like = {name: array for name, array in partial.last.items() if name != NUMBERS}
    write_joined(file, whole, like, partial.records, partial.num_rows)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")  # names of files may be any bytes


_FORMATS = {
    ".csv": Format(Prediction.table, _write_csv),
    ".jsonl": Format(Prediction.table, _write_jsonl),
    ".npz": Format(lambda prediction, arrays: None, _write_npz),
}
