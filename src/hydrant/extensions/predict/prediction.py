"""Predictions of a saved run for a split of its data, files, folders of them, tensors, or a table.

They are arrays, and rows with the names of classes, which are printed, or written into a file that appears when it is
complete.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np
import torch

from hydrant.batch import Batch, Tensors, tensors_of
from hydrant.config.command_line import writing_to
from hydrant.config.flat import flatten
from hydrant.data import Data, InMemorySource, LoaderSource, Reader, Source
from hydrant.data.base import rounded
from hydrant.data.in_memory import tensor_reader
from hydrant.errors import ConfigError, DataError, unknown_name
from hydrant.extensions.predict.arrays import NUMBERS, TARGET, TENSOR_FILES, Arrays, predict, read_inputs
from hydrant.files.on_disk import as_csv, json_safe, replacing, visible_files
from hydrant.files.plain_values import PositiveInt, check_value
from hydrant.interface import data_frame
from hydrant.runs.load import SavedRun
from hydrant.terminal.console import Progress, emit, notice, output_status
from hydrant.training.trainer import Plan

if TYPE_CHECKING:
    import pandas as pd

KEY = "inputs"
"""Names the inputs in error messages."""


@dataclass(frozen=True)
class Inputs:
    """Samples to predict.

    Args:
        source: the samples.
        title: what they are, for people.
        file_of: returns the file of a sample; None: samples are named by their number.
        has_targets: whether the targets of the source are known ones.
        files: the files that were given.
    """

    source: Source
    title: str
    file_of: Callable[[int], str] | None = None
    has_targets: bool = False
    files: Sequence[Path] = ()

    @property
    def column(self) -> str:
        """The name of the column that names the samples."""
        return "index" if self.file_of is None else "file"

    def name_of(self, number: int) -> str | int:
        """Return the name of a sample: its file, or its number."""
        return number if self.file_of is None else self.file_of(number)


def find_inputs(saved: SavedRun, words: Sequence[str]) -> Inputs:
    """Return the samples that the words name: one split or tensor file, or files and folders.

    Raises:
        ConfigError: there is no such split or file, the data of the run cannot read it, or a split has other classes
            than the run learned.
        DataError: a file is damaged.
    """
    plan = saved.plan
    if len(words) == 1 and words[0] in plan.splits:
        if Path(words[0]).exists():
            notice(f"{words[0]} is the split of the data; write ./{words[0]} for the path of this name")
        source = saved.split(words[0], KEY).source
        file_of = source.name_of if isinstance(source, LoaderSource) and source.names_are_files else None
        return Inputs(source, f"the split {words[0]}", file_of, has_targets=True)
    for word in words:
        if not Path(word).exists():
            splits = ", ".join(plan.splits)
            raise ConfigError(KEY, f"there is no file or folder {word}, nor such a split; splits: {splits}")
    if len(words) == 1 and Path(words[0]).suffix.lower() in TENSOR_FILES and _reader(plan).tensors:
        path = Path(words[0])
        return replace(of_tensors(plan, read_inputs(path, KEY), str(path)), files=(path,))
    return _of_files(_reader(plan), words, plan)


def check_not_read(out: Path, inputs: Inputs, plan: Plan) -> None:
    """Check that no samples are read from the file `out`, which predictions will replace.

    Raises:
        ConfigError: it is one of the given files, or of those that the settings of the data name.
    """
    names = [name for name in flatten(plan.config["data"]).values() if isinstance(name, str)]
    files = [name for name in (*inputs.files, *names) if os.path.isfile(name)]  # noqa: PTH113  # of any length
    if out.exists() and any(map(out.samefile, files)):
        message = f"{out} holds samples, which the predictions would replace"
        raise ConfigError("--out", message, remedy="give another file")


def of_tensors(plan: Plan, inputs: Tensors, title: str = "the given inputs") -> Inputs:
    """Return inputs in memory as samples.

    Raises:
        ConfigError: the data of the run take none, or the shape differs from that of the run's samples.
    """
    reader = _reader(plan)
    if reader.tensors is None:
        raise ConfigError(KEY, "this run cannot read tensors", remedy=_offers(plan))
    inputs, shape = rounded(inputs, plan.spec.doubles), plan.data.input_shape
    tensors = list(tensors_of(inputs))
    if len(tensors) == 1 and shape is not None and tuple(tensors[0].shape[1:]) != shape:
        message = f"{title} has the shape {list(tensors[0].shape)}"
        raise ConfigError(KEY, f"{message}, but the run needs (N, {', '.join(map(str, shape))})")
    source = reader.tensors(inputs)
    if not tensors or not Batch(inputs, ()).num_samples:
        raise ConfigError(KEY, f"{title} has no samples")
    kinds, needed = (_kinds(plan, part) for part in (source, plan.data.train))
    if kinds != needed:
        message = f"{title} has numbers of the type {kinds}, but the run needs {needed}"
        raise ConfigError(KEY, message, remedy="convert them")
    return Inputs(source, title)


def _kinds(plan: Plan, source: Source) -> str:
    """Return the kinds of numbers in the first sample of a source, for messages."""
    batch = next(iter(source.subset(range(1)).batches(plan.spec, 1)))
    kinds = (str(t.dtype).removeprefix("torch.").rstrip("12345678") for t in tensors_of(batch.inputs))
    return ", ".join(kind.replace("bfloat", "float") for kind in kinds)


def _of_files(reader: Reader, words: Sequence[str], plan: Plan) -> Inputs:
    if reader.files is None:
        raise ConfigError(KEY, f"this run cannot read {words[0]}", remedy=_offers(plan))
    files = [file for word in words for file in _files_of(Path(word), reader, plan)]
    title = str(files[0]) if len(files) == 1 else f"{len(files):,} files"
    source = reader.files(files)
    if not reader.is_sample_per_file:
        return Inputs(source, title, files=files)
    if source.num_samples != len(files):
        message = f"gives {source.num_samples} samples for {len(files)} files; one for each is needed"
        raise ConfigError("data", message)
    return Inputs(source, title, lambda number: str(files[number]), files=files)


def _files_of(path: Path, reader: Reader, plan: Plan) -> list[Path]:
    """Return a file, or the files in a folder and in folders within it that a reader can read, sorted."""
    suffixes = reader.suffixes
    if path.is_dir():
        paths = visible_files(path, lambda name: not suffixes or Path(name).suffix.lower() in suffixes)
        files = sorted(map(Path, paths))
        if not files:
            message = f"the folder {path} holds no file that this run reads"
            raise ConfigError(KEY, message, remedy=_offers(plan))
        return files
    if suffixes and path.suffix.lower() not in suffixes:
        raise ConfigError(KEY, f"this run cannot read {path}", remedy=_offers(plan))
    return [path]


def _reader(plan: Plan) -> Reader:
    """Return the reader of the data. Without one, data in memory read tensors, normalized like their samples."""
    if plan.data.reader is None and isinstance(plan.data.val, InMemorySource):
        return tensor_reader(plan.data.val.mean, plan.data.val.std)
    return plan.data.reader or Reader()


def _offers(plan: Plan) -> str:
    """Return what the data of a run can read, for messages."""
    reader, splits = _reader(plan), f"its splits ({', '.join(plan.splits)})"
    offers = [f"tensors ({', '.join(TENSOR_FILES)})"] if reader.tensors else []
    offers += [f"files ({', '.join(reader.suffixes) or 'of any kind'})"] if reader.files else []
    more = "data.read" if "read" in plan.config["data"] else "the argument reader of hydrant.data.Data"
    remedy = "" if plan.data.reader else f"; {more} gives it more"
    return f"it reads {', '.join([*offers, splits])}{remedy}"


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
        batch_size: how many are predicted at once; None: `eval_batch_size` of the run.
        probabilities: whether tables show the probability of each class.
    """

    saved: SavedRun
    inputs: Inputs
    batch_size: int | None
    probabilities: bool

    def batches(self) -> Iterator[Arrays]:
        """Yield the arrays of each batch, computed on the device of the run.

        Raises:
            ConfigError: the arrays of a batch have other types or shapes than those of the first one.
            DataError: no sample can be read.
        """
        plan, source, convert = self.saved.plan, self.inputs.source, self.saved.plan.data.in_target_units
        first, batch_size = Arrays(), self.batch_size or plan.config["eval_batch_size"]
        with self.saved.on_device() as task:
            for arrays in predict(task, source, plan.spec, batch_size, plan.precision):
                if not self.inputs.has_targets:
                    arrays.pop(TARGET, None)
                if convert is not None:
                    names = arrays.keys() & {PREDICTION, TARGET}
                    arrays |= {name: convert(torch.from_numpy(arrays[name])).numpy() for name in names}
                first = first or arrays
                _check_alike(first, arrays)
                yield arrays
        if not first:
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
        ConfigError: they have no place in a table, or another one than those of the first batch.
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
    """Yield the arrays of each batch, and show the progress."""
    bar = Progress.start(prediction.inputs.source.num_samples, 0, unit="samples")
    num_done = 0
    try:
        for arrays in prediction.batches():
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


@dataclass(frozen=True)
class Predictions:
    """The predictions of a run for samples.

    Args:
        arrays: what the task predicts, (N, ...) each by name, and the `target` of a split. A classification predicts
            `prediction`, `probability`, `probabilities` and `logits`; classes are integers.
        names: the file of each sample, or its number.
    """

    arrays: dict[str, np.ndarray]
    names: list[str | int]
    _numbers: np.ndarray
    _table_of: Callable[[Arrays], Table]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    @cached_property
    def table(self) -> pd.DataFrame:
        """The rows that `hydrant predict` writes, with the names of classes.

        Raises:
            ConfigError: pandas is not installed, or the predictions of a sample are no row; use `arrays`.
        """
        arrays = {NUMBERS: self._numbers, **self.arrays}
        table = self._table_of(arrays)
        return data_frame([dict(zip(table.columns, row, strict=True)) for row in table.rows(arrays)])


def collect(saved: SavedRun, inputs: Any, batch_size: int | None, *, probabilities: bool) -> Predictions:
    """Return the predictions of a saved run; `predict` explains the arguments.

    Raises:
        ConfigError: the data of the run cannot read the inputs.
        DataError: a file is damaged, or all are.
    """
    check_value("batch_size", PositiveInt | None, batch_size)
    samples = _inputs(saved, inputs)
    batches = list(Prediction(saved, samples, batch_size, probabilities).batches())
    arrays: Arrays = {name: np.concatenate([part[name] for part in batches]) for name in batches[0]}
    numbers = arrays.pop(NUMBERS)
    names = [samples.name_of(n) for n in numbers.tolist()]
    table_of = partial(Table.of, samples, data=saved.plan.data, probabilities=probabilities)
    return Predictions(arrays, names, numbers, table_of)


def _inputs(saved: SavedRun, inputs: Any) -> Inputs:
    words = [inputs] if isinstance(inputs, str | Path) else inputs
    if isinstance(words, Sequence) and words and all(isinstance(word, str | Path) for word in words):
        return find_inputs(saved, [str(word) for word in cast("Sequence[Any]", words)])
    return of_tensors(saved.plan, _as_tensors(inputs))


def _as_tensors(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        parts = cast("Mapping[str, Any]", inputs)
        return {name: _as_tensors(part) for name, part in parts.items()}
    return torch.from_numpy(inputs) if isinstance(inputs, np.ndarray) else inputs
