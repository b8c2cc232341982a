"""Read CSV files: the kinds of their columns, and the meaning of those for a model.

The shapes in a config depend on both, so this module imports no torch.
"""

from __future__ import annotations

import csv
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

import numpy as np

from hydrant.checks import no_file, suggestion
from hydrant.errors import ConfigError, DataError, first_line, shown, typed_line
from hydrant.files.user_files import is_number
from hydrant.terminal.text import shell_line

if TYPE_CHECKING:
    from omegaconf import DictConfig


_LARGEST = float(np.finfo(np.float32).max)
_COMMA_TO_POINT = str.maketrans(",.", ".,")
_CHUNK_ROWS = 10_000  # converted at once, so that the text of a large file is never held as a whole


@dataclass(frozen=True)
class Spelling:
    """How the cells of a file are written: the keys of these names in conf/data/csv.yaml."""

    delimiter: str
    decimal: str
    missing_words: frozenset[str]

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Spelling:
        """Return that of the keys of conf/data/csv.yaml."""
        words = frozenset(map(str, settings["missing_words"]))
        return cls(settings["delimiter"], settings["decimal"], words | {""})

    def number(self, text: str) -> str:
        """Return a text as Python writes it if it is a number."""
        return text if self.decimal == "." else text.translate(_COMMA_TO_POINT)

    def remedy(self, text: str) -> str:
        """Return the keys that give a meaning to a text among numbers."""
        comma = (
            """data.decimal="','" reads a decimal comma, """ if "," in text and self.decimal == "." else ""
        )
        return f"{comma}{shell_line([f'data.missing_words={shown([text])}'])} makes such cells missing"


@dataclass(frozen=True)
class Numbers:
    """A column of numbers: float64 (N,) with NaN where they are missing."""

    cells: np.ndarray

    @classmethod
    def parse(cls, cells: Sequence[str], spelling: Spelling) -> Self | None:
        """Return the column of these cells; None if there is something else than numbers."""
        words = spelling.missing_words
        texts = ["nan" if cell.strip() in words else spelling.number(cell) for cell in cells]
        try:
            numbers = np.array(texts, dtype=np.float64)
        except ValueError:
            return None
        num_missing = sum(cell.strip() in words for cell in cells) if np.isnan(numbers).any() else 0
        has_word = "_" in "".join(texts) or np.isnan(numbers).sum() > num_missing  # Python reads nan and 1_0
        return None if has_word else cls(numbers)

    @property
    def missing(self) -> np.ndarray:
        """The rows whose cell is missing, int64."""
        return np.flatnonzero(np.isnan(self.cells))

    def codes(self, names: Sequence[str]) -> np.ndarray:
        """Return the place of each number among these whole numbers from 0 on, int64 (N,); -1 for another."""
        is_known = (self.cells == np.floor(self.cells)) & (self.cells >= 0) & (self.cells < len(names))
        return np.where(is_known, self.cells, -1).astype(np.int64)

    def scaled(self, fill: float, mean: float, std: float) -> np.ndarray:
        """Return `(cells - mean) / std`, float32 (N,), infinite where that does not fit; `fill` replaces NaN."""
        cells = np.where(np.isnan(self.cells), fill, self.cells)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return ((cells - mean) / std).astype(np.float32)


@dataclass(frozen=True)
class Texts:
    """A column of texts: an object array (N,) of strings as they are written, with None where they are missing."""

    cells: np.ndarray

    @classmethod
    def parse(cls, cells: Sequence[str], spelling: Spelling) -> Self:
        """Return the column of these cells."""
        texts = np.empty(len(cells), dtype=object)
        texts[:] = [None if (text := cell.strip()) in spelling.missing_words else text for cell in cells]
        return cls(texts)

    @property
    def missing(self) -> np.ndarray:
        """The rows whose cell is missing, int64."""
        return np.flatnonzero([cell is None for cell in self.cells])

    def codes(self, names: Sequence[str]) -> np.ndarray:
        """Return the place of each text among these names, int64 (N,); -1 for another, or a missing one."""
        places = {name: place for place, name in enumerate(names)}
        return np.array([places.get(cell, -1) for cell in self.cells], dtype=np.int64)

    @property
    def names(self) -> tuple[str, ...]:
        """The different texts in order, numbers among them first and by their value."""
        texts = {*self.cells} - {None}
        return tuple(
            sorted(texts, key=lambda text: (0, float(text), text) if is_number(text) else (1, 0.0, text))
        )

    def first(self, is_meant: Callable[[str], bool]) -> int | None:
        """Return the first row whose text is meant; None if there is none."""
        return next((row for row, cell in enumerate(self.cells) if cell is not None and is_meant(cell)), None)


@dataclass(frozen=True)
class Table:
    """The columns of a CSV file."""

    path: Path
    columns: dict[str, Numbers | Texts]
    lines: np.ndarray  # int64 (N,): the line of the file in which each row ends

    @property
    def num_rows(self) -> int:
        return len(self.lines)

    def place(self, row: int, column: str) -> str:
        """Return where a cell is, for messages."""
        return f"line {self.lines[row]} of {self.path}, column {column!r}"

    def check_columns(self, names: Collection[str], key: str) -> None:
        """Check that these columns exist.

        Raises:
            ConfigError: one does not; `key` named it.
        """
        for name in names:
            if name not in self.columns:
                remedy = suggestion(name, self.columns, "Columns")
                remedy += "; if the line has several names, set data.delimiter" * (len(self.columns) == 1)
                raise ConfigError(key, f"{self.path} has no column {name!r}", remedy=remedy)

    def numbers(self, name: str, spelling: Spelling) -> Numbers:
        """Return a column that holds numbers in the training file.

        Raises:
            ConfigError: it holds a text here.
        """
        column = self.columns[name]
        if isinstance(column, Numbers):
            return column
        row = column.first(lambda text: not is_number(spelling.number(text))) or 0
        message = f"{column.cells[row]!r} in {self.place(row, name)} is no number, as in data.train"
        remedy = f"{spelling.remedy(str(column.cells[row]))}; or correct the cell"
        raise ConfigError("data", message, remedy=remedy)


def read_table(
    path: str, spelling: Spelling, key: str, texts: Collection[str] = (), *, min_columns: int = 2
) -> Table:
    """Read a CSV file whose first line has the names of the columns.

    A column of numbers holds nothing else; all others, and those in `texts`, hold texts. A file that has not changed
    is read once in a process.

    Args:
        key: the config key that names the file.
        min_columns: a table without a target may have a single column.

    Raises:
        ConfigError: there is no such file.
        DataError: it is no CSV file with these columns in every line, or holds numbers that do not fit float32.
    """
    file = Path(path)
    if not file.is_file():
        raise no_file(key, file)
    status = file.stat()
    try:
        table = _read(file, spelling, frozenset(texts), status.st_mtime_ns, status.st_size)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: {_encoding_error(file, error)}") from error
    except (OSError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {typed_line(error)}") from error
    if len(table.columns) < min_columns:
        message = f"the first line of {path} names 1 column, with data.delimiter={spelling.delimiter!r}"
        raise DataError(f"{message}; the names of several columns are needed")
    return table


def _encoding_error(file: Path, in_chunk: UnicodeDecodeError) -> str:
    """Return the message about a file that is not in UTF-8: the error of a chunk of it knows no line."""
    try:
        file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as in_file:
        return first_line(in_file)
    return first_line(in_chunk)  # the file has changed meanwhile


@lru_cache(maxsize=2)
def _read(path: Path, spelling: Spelling, texts: frozenset[str], mtime_ns: int, size: int) -> Table:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = _rows(path, file, spelling.delimiter)
        names = [name.strip() for name in next(rows, (0, []))[1]]
        if not any(names):
            raise DataError(f"the first line of {path} names no columns")
        if double := next((name for name, count in Counter(names).items() if count > 1), None):
            raise DataError(f"the first line of {path} names the column {double!r} twice")
        lines, parts = list[int](), {name: list[Numbers | Texts]() for name in names}
        while chunk := list(itertools.islice(rows, _CHUNK_ROWS)):
            lines += [line for line, _ in chunk]
            for name, cells in zip(names, zip(*(row for _, row in chunk), strict=True), strict=True):
                kind = Texts if name in texts else Numbers
                part = kind.parse(cells, spelling)
                if part is None:  # read the numbers before this text as texts too
                    return _read(path, spelling, texts | {name}, mtime_ns, size)
                parts[name].append(part)
    if not lines:
        raise DataError(f"{path} has no rows")
    joined = {name: np.concatenate([part.cells for part in column]) for name, column in parts.items()}
    columns = {name: (Texts if name in texts else Numbers)(cells) for name, cells in joined.items()}
    return _checked(Table(path, columns, np.array(lines, dtype=np.int64)))


def _rows(path: Path, file: TextIO, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the cells of each row that is not empty; all have as many cells as the first.

    Spreadsheets may write the delimiter into a line before the names: `sep=;`.
    """
    first = file.readline().lstrip("\ufeff")  # a second byte order mark
    if declared := re.fullmatch(r"sep=(.)\r?\n", first):
        delimiter, first = declared[1], "\n"
    rows = csv.reader(itertools.chain([first], file), delimiter=delimiter, skipinitialspace=delimiter != " ")
    count = None
    for row in filter(None, rows):
        if len(row) != (count := count or len(row)):
            message = f"line {rows.line_num} of {path} has {len(row)} cells, but there are {count} columns"
            raise DataError(message, remedy="correct the line, or data.delimiter")
        yield rows.line_num, row


def _checked(table: Table) -> Table:
    for name, column in table.columns.items():
        if isinstance(column, Numbers) and (is_huge := np.abs(column.cells) > _LARGEST).any():
            row = int(is_huge.argmax())
            number = column.cells[row]
            fault = f"{number:g}, larger than float32 can hold" if np.isfinite(number) else "infinite"
            raise DataError(f"{table.place(row, name)}: the number is {fault}", remedy="correct it")
    return table


MAX_GUESSED_CLASSES = 20
"""Whole numbers with at most this many different values may be classes or numbers."""


@dataclass(frozen=True)
class Layout:
    """The meaning of the columns of the training file."""

    numbers: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]  # by column, in order
    targets: tuple[str, ...]
    classes: tuple[str, ...] | None  # of the target, in order; None: the targets are numbers
    texts: frozenset[str]  # the columns that are read as texts
    is_one_hot: bool
    spelling: Spelling

    @property
    def num_inputs(self) -> int:
        """The number of inputs of a sample, if categories are one-hot."""
        return len(self.numbers) + sum(map(len, self.categories.values()))

    @property
    def num_outputs(self) -> int:
        """The number of outputs that a model needs: one for each class, or one for each target."""
        return len(self.targets) if self.classes is None else len(self.classes)


def read_layout(settings: Mapping[str, Any]) -> tuple[Layout, Table]:
    """Return the layout and the rows of `data.train`. `settings` are the keys of conf/data/csv.yaml.

    Raises:
        ConfigError: a column does not exist, or does not fit what the settings say about it.
        DataError: the file cannot be read.
    """
    target, listed = settings["target"], list(settings["categorical"])
    # A number is refused later, by its type: the shapes of the config are resolved first.
    targets = [str(target)] if isinstance(target, str | int | float) else list(target)
    as_classes = targets if settings["classes"] is True else []
    spelling = Spelling.of(settings)
    table = read_table(settings["train"], spelling, "data.train", [*listed, *as_classes])
    table.check_columns(targets, "data.target")
    table.check_columns(listed, "data.categorical")
    features = settings["features"]
    names = [n for n in table.columns if n not in targets] if features is None else list(features)
    table.check_columns(names, "data.features")
    double = next((name for name, count in Counter(names).items() if count > 1), None)
    if double is not None:
        raise ConfigError("data.features", f"names the column {double!r} twice", remedy="name it once")
    if not targets or not names or set(names) & set(targets):
        message = f"{names} with data.target={targets}: one or more of each are needed, and none in both"
        raise ConfigError("data.features", message)
    texts = {name: c for name in (*names, *targets) if isinstance(c := table.columns[name], Texts)}
    for name in sorted(texts.keys() - {*listed, *as_classes}):
        key = "data.classes=true" if name in targets else f"data.categorical={shown([name])}"
        _check_kind(table, name, spelling, f"{shell_line([key])} takes all cells as texts")
    limit = settings["max_categories"]
    categories = {n: _categories(table, n, texts[n].names, limit) for n in names if n in texts}
    numbers = tuple(name for name in names if name not in texts)
    classes = _classes(table, targets, settings["classes"])
    is_one_hot = settings["categories"] == "one_hot"
    return Layout(numbers, categories, tuple(targets), classes, frozenset(texts), is_one_hot, spelling), table


def _check_kind(table: Table, name: str, spelling: Spelling, meant: str) -> None:
    """Refuse a column in which some cells are numbers, with any decimal sign, and others are none.

    Args:
        meant: the override that takes all of its cells as texts, with its meaning.
    """
    column = table.columns[name]
    assert isinstance(column, Texts)
    row = column.first(lambda text: not is_number(spelling.number(text)))
    if row is None or column.first(lambda text: is_number(text) or is_number(text.replace(",", ""))) is None:
        return
    cell = str(column.cells[row])
    remedy = f"{meant}, {spelling.remedy(cell)}; or correct the cell"
    raise ConfigError("data.train", f"{cell!r} in {table.place(row, name)} is no number", remedy=remedy)


def layout_of(node: DictConfig) -> Layout | None:
    """Return the layout of a node `data`; None if a required key is missing, which the check of the config reports."""
    from omegaconf import OmegaConf  # the training loop imports this module, but no config library

    shapes = ("input_shape", "num_classes")
    if any(OmegaConf.is_missing(node, key) for key in node):
        return None
    return read_layout({str(key): node[key] for key in node if key not in shapes})[0]


def _categories(table: Table, name: str, texts: tuple[str, ...], limit: int) -> tuple[str, ...]:
    if len(texts) > limit:
        cells = table.columns[name].cells
        row = next(row for row, cell in enumerate(cells) if cell is not None)
        message = (
            f"{name!r} has {len(texts)} different texts, such as {cells[row]!r} ({table.place(row, name)})"
        )
        remedy = (
            f"leave the column out by data.features, correct it, or allow data.max_categories={len(texts)}"
        )
        raise ConfigError("data.features", message, remedy=remedy)
    return texts


def _classes(table: Table, targets: Sequence[str], setting: bool | str) -> tuple[str, ...] | None:
    """Return the classes of the target; None if the targets are numbers.

    Raises:
        ConfigError: it has texts beside `data.classes=false`, or whole numbers may be either and `data.classes=auto`.
    """
    for name in targets:
        column = table.columns[name]
        if isinstance(column, Texts) and (setting is False or len(targets) > 1):
            message = f"{name!r} has texts, such as {next(filter(None, column.cells))!r}; several targets are numbers"
            raise ConfigError("data.target", message)
    column = table.columns[targets[0]]
    if isinstance(column, Texts):
        return column.names
    values = np.unique(column.cells)
    is_whole = len(targets) == 1 and bool((values == np.floor(values)).all())
    if setting is False or not is_whole or len(values) > MAX_GUESSED_CLASSES:
        return None
    if len(values) > 1 and np.array_equal(values, np.arange(len(values))):
        return tuple(map(str, range(len(values))))
    span = f"{int(values[0])} to {int(values[-1])}"
    message = f"the target {targets[0]!r} has {len(values)} whole numbers from {span}"
    raise ConfigError("data.classes", message, remedy="true makes them classes, false numbers")


def csv_input_shape(*, _parent_: DictConfig) -> list[int] | None:
    """Return the shape of a sample's input of data=csv: see `Layout.num_inputs`; null if inputs are a dict."""
    layout = layout_of(_parent_)
    if layout is None or not layout.is_one_hot:
        return None
    return [layout.num_inputs]


def csv_num_outputs(*, _parent_: DictConfig) -> int | None:
    """Return how many outputs a model needs for data=csv: see `Layout.num_outputs`."""
    layout = layout_of(_parent_)
    return None if layout is None else layout.num_outputs
