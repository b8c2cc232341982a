"""Read CSV files: the kinds of their columns, and the meaning of those for a model.

The shapes in a config depend on both, so this module imports no torch.
"""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TextIO

import numpy as np

from hydrant.errors import ConfigError, DataError, no_file, shown, suggestion, typed_line
from hydrant.files.on_disk import encoding_error, is_number
from hydrant.terminal.text import shell_line

if TYPE_CHECKING:
    from omegaconf import DictConfig


_COMMA_TO_POINT = str.maketrans(",.", ".,")
_LARGEST = float(np.finfo(np.float32).max)
_MAX_NUMBERED = 20
"""Whole numbers with at most this many different values may be classes or numbers."""
_CHUNK_ROWS = 10_000  # converted at once, so that the text of a large file is never held as a whole


@dataclass(frozen=True)
class Spelling:
    """How the cells of a file are written: the keys of these names in conf/data/csv.yaml."""

    delimiter: str
    decimal: str
    missing_words: frozenset[str]

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Return that of the keys of conf/data/csv.yaml."""
        words = frozenset(map(str, settings["missing_words"]))
        return cls(settings["delimiter"], settings["decimal"], words | {""})

    def number(self, text: str) -> str:
        """Return a text as Python writes it if it is a number."""
        return text if self.decimal == "." else text.translate(_COMMA_TO_POINT)

    def is_number(self, text: str) -> bool:
        """Return whether a text is a number that fits float32."""
        return is_number(number := self.number(text)) and abs(float(number)) <= _LARGEST

    def parse(self, cells: Sequence[str], *, as_texts: bool) -> np.ndarray | None:
        """Return the cells of a `Column`; None if one is no number that fits float32, but should be."""
        cells = [cell.strip() for cell in cells]
        is_missing = [cell in self.missing_words for cell in cells]
        if as_texts:
            texts = np.array(cells, dtype=object)
            texts[is_missing] = None
            return texts
        words = ["nan" if gap else self.number(cell) for gap, cell in zip(is_missing, cells, strict=True)]
        try:
            numbers = np.array(words, dtype=np.float64)
        except ValueError:
            return None
        are_numbers = np.array_equal(np.abs(numbers) <= _LARGEST, np.logical_not(is_missing))
        return numbers if are_numbers and "_" not in "".join(words) else None  # Python reads nan, inf and 1_0


@dataclass(frozen=True)
class Column:
    """The cells of a column, (N,).

    They are float64, with NaN where they are missing; or texts as they are written, with None where they are missing.
    """

    cells: np.ndarray

    @property
    def is_text(self) -> bool:
        return self.cells.dtype == object

    @property
    def missing(self) -> np.ndarray:
        """The rows whose cell is missing, int64."""
        return np.flatnonzero([cell is None or cell != cell for cell in self.cells.tolist()])

    @property
    def names(self) -> tuple[str, ...]:
        """The different texts in order, numbers among them first and by their value."""
        texts = {*self.cells} - {None}
        return tuple(
            sorted(texts, key=lambda text: (0, float(text), text) if is_number(text) else (1, 0.0, text))
        )

    def codes(self, names: Sequence[str]) -> np.ndarray:
        """Return the place of each cell among these names, int64 (N,); -1 for another, or a missing one."""
        places = {name if self.is_text else float(name): place for place, name in enumerate(names)}
        return np.array([places.get(cell, -1) for cell in self.cells.tolist()], dtype=np.int64)

    def scaled(self, fill: float, mean: float, std: float) -> np.ndarray:
        """Return `(cells - mean) / std`, float32 (N,), infinite where that does not fit; `fill` replaces NaN."""
        cells = np.where(np.isnan(self.cells), fill, self.cells)
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return ((cells - mean) / std).astype(np.float32)


@dataclass(frozen=True)
class Table:
    """The columns of a CSV file."""

    path: Path
    columns: dict[str, Column]
    lines: np.ndarray  # int64 (N,): the line of the file in which each row ends
    spelling: Spelling

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

    def check_filled(self, names: Iterable[str], key: str, remedy: str) -> None:
        """Check that no cell of these columns is missing.

        Raises:
            ConfigError: one is; `key` decides about it.
        """
        for name in names:
            if len(missing := self.columns[name].missing):
                message = f"{self.place(missing[0], name)} has no value ({len(missing)} in this column)"
                raise ConfigError(key, message, remedy=remedy)

    def check_numbers(self, name: str, key: str = "data", remedy: str = "") -> None:
        """Check that a column holds numbers.

        Args:
            key: the config key of the file.
            remedy: what takes all of its cells as texts.

        Raises:
            ConfigError: a cell is no number.
        """
        column, is_number = self.columns[name], self.spelling.is_number
        if column.is_text:
            row = next((n for n, cell in enumerate(column.cells) if cell and not is_number(cell)), None)
            message = f"{name!r} has texts, as data.categorical or data.classes=true asks, but needs numbers"
            if row is not None:
                cell = column.cells[row]
                comma = """data.decimal="','" reads a decimal comma, """ if "," in cell else ""
                word = shell_line([f"data.missing_words={shown([cell])}"])
                remedy = f"{remedy}{comma}{word} makes such cells missing; or correct the cell"
                message = f"{cell!r} in {self.place(row, name)} is no number that fits float32"
            raise ConfigError(key, message, remedy=remedy)


def read_table(path: str, spelling: Spelling, key: str, texts: Collection[str] = ()) -> Table:
    """Read a CSV file whose first line has the names of the columns.

    A column of numbers holds nothing else; all others, and those in `texts`, hold texts. A file that has not changed
    is read once in a process.

    Args:
        key: the config key that names the file.

    Raises:
        ConfigError: there is no such file.
        DataError: it is no CSV file with these columns in every line.
    """
    file = Path(path)
    if not file.is_file():
        raise no_file(key, file)
    status = file.stat()
    try:
        return _read(file, spelling, frozenset(texts), status.st_mtime_ns, status.st_size)
    except UnicodeDecodeError as error:
        raise DataError(encoding_error(file)) from error
    except (OSError, csv.Error) as error:
        raise DataError(f"{path} cannot be read: {typed_line(error)}") from error


@lru_cache(maxsize=2)
def _read(path: Path, spelling: Spelling, texts: frozenset[str], mtime_ns: int, size: int) -> Table:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = _rows(path, file, spelling.delimiter)
        names = [name.strip() for name in next(rows, (0, []))[1]]
        if double := next((name for name, count in Counter(names).items() if count > 1), None):
            raise DataError(f"the first line of {path} names the column {double!r} twice")
        lines, parts = list[int](), {name: list[np.ndarray]() for name in names}
        while chunk := list(itertools.islice(rows, _CHUNK_ROWS)):
            lines += [line for line, _ in chunk]
            for name, cells in zip(names, zip(*(row for _, row in chunk), strict=True), strict=True):
                part = spelling.parse(cells, as_texts=name in texts)
                if part is None:  # read the numbers before this text as texts too
                    return _read(path, spelling, texts | {name}, mtime_ns, size)
                parts[name].append(part)
    if not lines:
        raise DataError(f"{path} has no rows")
    columns = {name: Column(np.concatenate(cells)) for name, cells in parts.items()}
    return Table(path, columns, np.array(lines, dtype=np.int64), spelling)


def _rows(path: Path, file: TextIO, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the cells of each row that is not empty; all have as many cells as the first."""
    rows = csv.reader(file, delimiter=delimiter, skipinitialspace=delimiter != " ")
    count = None
    for row in filter(None, rows):
        if len(row) != (count := count or len(row)):
            message = f"line {rows.line_num} of {path} has {len(row)} cells, but there are {count} columns"
            raise DataError(message, remedy="correct the line, or data.delimiter")
        yield rows.line_num, row


@dataclass(frozen=True)
class Layout:
    """The meaning of the columns of the training file."""

    numbers: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]  # by column, in order
    targets: tuple[str, ...]
    classes: tuple[str, ...] | None  # of the target, in order; None: the targets are numbers
    texts: frozenset[str]  # the columns that are read as texts
    settings: Mapping[str, Any]  # the keys of conf/data/csv.yaml

    def read(self, path: str, key: str) -> Table:
        """Read a file with these columns; see `read_table`."""
        return read_table(path, Spelling.of(self.settings), key, self.texts)

    @property
    def is_one_hot(self) -> bool:
        return self.settings["categories"] == "one_hot"

    @property
    def standardized(self) -> frozenset[str]:
        """The columns whose numbers have mean 0 and standard deviation 1 in the training samples."""
        targets = self.targets if self.settings["standardize_targets"] and self.classes is None else ()
        return frozenset((*(self.numbers if self.settings["standardize"] else ()), *targets))

    @property
    def input_shape(self) -> list[int] | None:
        """The shape of a sample's input; None if inputs are a dict."""
        num_inputs = len(self.numbers) + sum(map(len, self.categories.values()))
        return [num_inputs] if self.is_one_hot else None

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
    target, categorical = settings["target"], list(settings["categorical"])
    # A number is refused later, by its type: the shapes of the config are resolved first.
    targets = [str(target)] if isinstance(target, str | int | float) else list(target)
    listed = [*categorical, *(targets if settings["classes"] is True else [])]
    table = read_table(settings["train"], Spelling.of(settings), "data.train", listed)
    names = settings["features"]
    names = [n for n in table.columns if n not in targets] if names is None else list(names)
    for key, columns in {"target": targets, "categorical": categorical, "features": names}.items():
        table.check_columns(columns, f"data.{key}")
    if not targets or not names or set(names) & set(targets):
        message = f"{names} with data.target={targets}: one or more of each are needed, and none in both"
        raise ConfigError("data.features", message)
    texts = {name for name in (*names, *targets) if table.columns[name].is_text}
    for name in sorted(texts - {*listed}):
        if any(is_number(cell.replace(",", "")) for cell in table.columns[name].names):
            key = "data.classes=true" if name in targets else f"data.categorical={shown([name])}"
            table.check_numbers(name, "data.train", f"{shell_line([key])} takes all cells as texts, ")
    categories = {name: table.columns[name].names for name in names if name in texts}
    numbers = tuple(name for name in names if name not in texts)
    classes = _classes(table, targets, settings["classes"])
    return Layout(numbers, categories, tuple(targets), classes, frozenset(texts), settings), table


def _classes(table: Table, targets: Sequence[str], setting: bool | str) -> tuple[str, ...] | None:
    """Return the classes of the target; None if the targets are numbers.

    Raises:
        ConfigError: it has texts beside `data.classes=false` or other targets, or whole numbers that may be either.
    """
    if setting is False or len(targets) > 1:
        for name in targets:
            table.check_numbers(name, "data.target")
        return None
    column = table.columns[targets[0]]
    if column.is_text:
        return column.names
    values = np.unique(column.cells)
    if len(values) > _MAX_NUMBERED or (values != np.floor(values)).any():  # or one is missing
        return None
    if len(values) > 1 and np.array_equal(values, np.arange(len(values))):
        return tuple(map(str, range(len(values))))
    message = (
        f"the target {targets[0]!r} has {len(values)} whole numbers from {values[0]:.0f} to {values[-1]:.0f}"
    )
    raise ConfigError("data.classes", message, remedy="true makes them classes, false numbers")


def csv_setting(name: str, *, _parent_: DictConfig) -> list[int] | int | None:
    """Return a property of the layout of data=csv.

    It is null if a required key is missing, which the check of the config reports.
    """
    from omegaconf import OmegaConf  # the training loop imports this module, but no config library

    if any(OmegaConf.is_missing(_parent_, key) for key in _parent_):
        return None
    shapes = ("input_shape", "num_classes")
    layout, _ = read_layout({str(key): _parent_[key] for key in _parent_ if key not in shapes})
    return getattr(layout, name)
