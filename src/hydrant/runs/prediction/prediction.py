"""The predictions of a saved run for samples, as arrays and as rows with the names of classes.

Write predictions in the format of the file's ending, into a file that appears when it is complete, or print them.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from hydrant.checks import unknown_name
from hydrant.config.command_line import writing_to
from hydrant.data.base import Data
from hydrant.errors import ConfigError, DataError
from hydrant.files.atomic_write import json_safe, replacing
from hydrant.files.user_files import as_csv
from hydrant.runs.load import SavedRun
from hydrant.runs.prediction.inputs import Inputs, check_not_read
from hydrant.terminal.console import emit, output_status
from hydrant.terminal.progress_bar import ProgressBar
from hydrant.training.splits import NUMBERS, TARGET, Arrays, predict

PREDICTION, PROBABILITIES, LOGITS = "prediction", "probabilities", "logits"
_HEADS = {PROBABILITIES: "probability"}  # the columns of an array (B, C) are named probability/cat


@dataclass(frozen=True)
class Table:
    """The columns of predictions.

    Args:
        columns: the names of all columns.
        parts: the names of the arrays that they show.
        name_of: returns the name of a sample by its number.
        class_names: of integers, which are classes.
    """

    columns: tuple[str, ...]
    parts: tuple[str, ...]
    name_of: Callable[[int], str | int]
    class_names: tuple[str, ...]

    @classmethod
    def of(cls, inputs: Inputs, arrays: Arrays, data: Data, *, probabilities: bool) -> Table:
        """Return the table for arrays like these.

        Args:
            inputs: name the samples.
            arrays: of a batch.
            data: names classes and targets.
            probabilities: whether to show the probability of each class; those of labels are always shown.

        Raises:
            ConfigError: an array has no place in a table.
        """
        hidden = {NUMBERS, LOGITS}
        if PREDICTION in arrays and not probabilities:
            hidden.add(PROBABILITIES)
        if arrays.get(TARGET, np.zeros(0)).ndim > 2:
            hidden.add(TARGET)
        parts = tuple(name for name in arrays if name not in hidden)
        names = data.class_names or data.target_names
        columns = [column for name in parts for column in _columns(name, arrays[name], names)]
        has_classes = PREDICTION in arrays and arrays[PREDICTION].dtype.kind in "iu"
        return cls(
            (inputs.column, *columns), parts, inputs.name_of, (data.class_names or ()) if has_classes else ()
        )

    def rows(self, arrays: Arrays) -> Iterator[list[Any]]:
        """Yield the row of each sample of a batch."""
        parts = [self._values(name, arrays[name]) for name in self.parts]
        for row, number in enumerate(arrays[NUMBERS].tolist()):
            yield [self.name_of(number), *(value for part in parts for value in part[row])]

    def _values(self, name: str, array: np.ndarray) -> list[list[Any]]:
        """Return the values of each row."""
        values = array.reshape(len(array), -1)
        if values.dtype == np.float32:  # the shortest decimals that mean this number
            return [[float(text) for text in row] for row in values.astype(str)]
        if name in (PREDICTION, TARGET) and array.ndim == 1 and values.dtype.kind in "iu":
            names = self.class_names
            return [[names[n] if 0 <= n < len(names) else n for n in row] for row in values.tolist()]
        return values.tolist()


def _columns(name: str, array: np.ndarray, names: Sequence[str]) -> list[str]:
    if array.ndim == 1 or array.shape[1:] == (1,):
        return [name]
    if array.ndim > 2:
        message = f"{name!r} of a sample has the shape {list(array.shape[1:])}, which is no row of a table"
        raise ConfigError("--out", message, remedy="give a file that ends in .npz")
    count = array.shape[1]
    entries = names if len(names) == count else range(count)
    return [f"{_HEADS.get(name, name)}/{entry}" for entry in entries]


@dataclass(frozen=True)
class Prediction:
    """The predictions of a saved run for samples.

    Args:
        saved: the run.
        inputs: the samples.
        batch_size: how many are predicted at once.
        probabilities: whether tables show the probability of each class.
    """

    saved: SavedRun
    inputs: Inputs
    batch_size: int
    probabilities: bool

    def batches(self) -> Iterator[Arrays]:
        """Yield the arrays of each batch, computed on the device of the run.

        Raises:
            DataError: no sample can be read.
        """
        plan, source, convert = self.saved.plan, self.inputs.source, self.saved.plan.data.in_target_units
        is_empty = True
        with self.saved.on_device() as task:
            for arrays in predict(task, source, plan.spec, self.batch_size, plan.precision):
                if not self.inputs.has_targets:
                    arrays.pop(TARGET, None)
                if convert is not None:
                    names = arrays.keys() & {PREDICTION, TARGET}
                    arrays |= {name: convert(torch.from_numpy(arrays[name])).numpy() for name in names}
                is_empty = False
                yield arrays
        if is_empty:
            raise DataError(f"no sample of {self.inputs.title} can be read; the warnings above say why")

    def table(self, arrays: Arrays) -> Table:
        """Return the table for arrays like these."""
        return Table.of(self.inputs, arrays, self.saved.plan.data, probabilities=self.probabilities)


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


def _write_csv(file: IO[bytes], prediction: Prediction, batches: Iterable[Arrays]) -> int:
    count = -1  # the first row has the names of the columns
    for rows in _rows(prediction, batches):
        file.write(_encoded(as_csv(rows, end="\n")))
        count += len(rows)
    return count


def _write_jsonl(file: IO[bytes], prediction: Prediction, batches: Iterable[Arrays]) -> int:
    count, rows = 0, (row for part in _rows(prediction, batches) for row in part)
    columns = next(rows)
    for row in rows:
        count += 1
        file.write(_encoded(json.dumps(json_safe(dict(zip(columns, row, strict=True)))) + "\n"))
    return count


def _rows(prediction: Prediction, batches: Iterable[Arrays]) -> Iterator[list[list[Any]]]:
    """Yield the rows of each batch; the first one has the names of the columns in front."""
    table: Table | None = None
    for arrays in batches:
        head = [] if table else [list((table := prediction.table(arrays)).columns)]
        yield [*head, *table.rows(arrays)]


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
    for rows in _rows(prediction, prediction.batches()):
        emit(as_csv(rows, end="\n").rstrip("\n"))
        if status := output_status():  # `| head` has seen enough
            return status
    return 0


def predictions_of(prediction: Prediction) -> tuple[list[str], list[list[Any]]]:
    """Return the columns and the rows of what `print_predictions` prints.

    Raises:
        ConfigError: they have no place in a table.
        DataError: no sample can be read.
    """
    columns, *rows = (row for part in _rows(prediction, prediction.batches()) for row in part)
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


def _check_alike(first: Arrays, arrays: Arrays) -> None:
    for name in first.keys() | arrays.keys():
        shapes = [
            f"{part[name].dtype} {list(part[name].shape[1:])}" if name in part else "missing"
            for part in (first, arrays)
        ]
        if shapes[0] != shapes[1]:
            message = f"{name!r} of a sample is {shapes[0]} in one batch and {shapes[1]} in the next"
            raise ConfigError("task", message, remedy="pad all samples to one length")
