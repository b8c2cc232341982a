"""Write predictions in the format of the file's ending, into a file that appears when it is complete, or print them."""

import json
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from hydrant.checks import unknown_name
from hydrant.config.command_line import writing_to
from hydrant.errors import ConfigError, DataError
from hydrant.files.atomic_write import json_safe, replacing
from hydrant.files.user_files import as_csv
from hydrant.runs.prediction.inputs import check_not_read
from hydrant.runs.prediction.prediction import Prediction, Table
from hydrant.terminal.console import emit, output_status
from hydrant.terminal.progress_bar import ProgressBar
from hydrant.training.splits import NUMBERS, Arrays

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


def print_predictions(prediction: Prediction) -> int:
    """Print the predictions as CSV, each batch when it is there, while stdout can be written. Return the exit status.

    Raises:
        ConfigError: they have no place in a table.
        DataError: no sample can be read.
    """
    is_empty = True
    for table, arrays in _tabled(prediction, prediction.batches()):
        emit(csv_text([*([table.columns] if is_empty else []), *table.rows(arrays)]).rstrip("\n"))
        is_empty = False
        if status := output_status():  # `| head` has seen enough
            return status
    if is_empty:
        raise _no_samples(prediction)
    return 0


def predictions_of(prediction: Prediction) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and the rows of what `print_predictions` prints.

    Raises:
        ConfigError: they have no place in a table.
        DataError: no sample can be read.
    """
    columns, rows = list[str](), list[list[Any]]()
    for table, arrays in _tabled(prediction, prediction.batches()):
        columns, rows = list(table.columns), [*rows, *table.rows(arrays)]
    if not columns:
        raise _no_samples(prediction)
    return columns, rows


def write_predictions(prediction: Prediction, out: Path) -> int:
    """Write the predictions into a file, and return their number.

    Raises:
        ConfigError: the file cannot be written, cannot hold these predictions, or holds samples that are read.
        DataError: a sample cannot be read, or none can.
    """
    write, path = format_of(out), out.resolve()  # write through a link instead of replacing it
    check_not_read(path, prediction.inputs, prediction.saved.plan)
    with writing_to("--out", out), replacing(path) as file:
        return write(file, prediction, _batches(prediction))


def _batches(prediction: Prediction) -> Generator[Arrays]:
    """Yield the arrays of each batch, and show the progress.

    Raises:
        ConfigError: the arrays of a batch have other types or shapes than those of the first one.
        DataError: no sample can be read.
    """
    bar = ProgressBar.start(prediction.inputs.source.num_samples, 0, unit="samples")
    first, num_done = Arrays(), 0
    try:
        for arrays in prediction.batches():
            first = first or arrays
            _check_alike(first, arrays)
            yield arrays
            bar.advance(int(arrays[NUMBERS][-1]) + 1 - num_done)
            num_done = int(arrays[NUMBERS][-1]) + 1
    finally:
        bar.close()
    if not first:
        raise _no_samples(prediction)


def _check_alike(first: Arrays, arrays: Arrays) -> None:
    for name in first.keys() | arrays.keys():
        shapes = [
            f"{part[name].dtype} {list(part[name].shape[1:])}" if name in part else "missing"
            for part in (first, arrays)
        ]
        if shapes[0] != shapes[1]:
            message = f"{name!r} of a sample is {shapes[0]} in one batch and {shapes[1]} in the next"
            raise ConfigError("task", message, remedy="pad all samples to one length")


def _no_samples(prediction: Prediction) -> DataError:
    return DataError(f"no sample of {prediction.inputs.title} can be read; the warnings above say why")
