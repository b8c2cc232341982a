"""Read CSV files. The shapes in a config depend on what they hold, so this module imports no torch.

The meaning of a CSV file's columns: numbers, categories and targets. Shapes in the config depend on it.
"""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

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

    def value(self, cell: str) -> str | None:
        """Return the text of a cell; None if it is missing."""
        text = cell.strip()
        return None if text in self.missing_words else text

    def number(self, text: str) -> str:
        """Return a text as Python writes it if it is a number."""
        return text if self.decimal == "." else text.translate(_COMMA_TO_POINT)

    def first_text(self, cells: np.ndarray) -> tuple[int, str] | None:
        """Return the first row of a column of texts that is no number, and its text."""
        texts = ((row, cell) for row, cell in enumerate(cells) if cell is not None)
        return next(((row, cell) for row, cell in texts if not is_number(self.number(cell))), None)

    def remedy(self, text: str) -> str:
        """Return the keys that give a meaning to a text among numbers."""
        comma = (
            """data.decimal="','" reads a decimal comma, """ if "," in text and self.decimal == "." else ""
        )
        return f"{comma}{shell_line([f'data.missing_words={shown([text])}'])} makes such cells missing"


@dataclass(frozen=True)
class Table:
    """The cells of a CSV file by column: numbers as float64 (N,) with NaN where they are missing, or texts.

    Texts are an object array (N,) of strings, with None where they are missing.
    """

    path: Path
    columns: dict[str, np.ndarray]
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
                message = f"{self.path} has no column {name!r}{suggestion(name, self.columns, 'Columns')}"
                single = "; if the line has several names, set data.delimiter" * (len(self.columns) == 1)
                raise ConfigError(key, f"{message}{single}")


def is_text(cells: np.ndarray) -> bool:
    """Return whether a column of a table holds texts."""
    return cells.dtype == object


def missing_rows(cells: np.ndarray) -> np.ndarray:
    """Return the rows of a column whose cell is missing, int64."""
    return np.flatnonzero([cell is None for cell in cells] if is_text(cells) else np.isnan(cells))


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
    while True:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = _rows(file, spelling.delimiter)
            names = [name.strip() for name in next(filter(None, rows), [])]
            _check_names(path, names)
            lines, columns = [0], {name: [np.zeros(0)] for name in names}
            has_texts = set[str]()
            for chunk in _chunks(path, rows, names, lines):
                for name, cells in zip(names, zip(*chunk, strict=True), strict=True):
                    part = None if name in texts else _numbers(cells, spelling)
                    if part is None:
                        has_texts.add(name)
                        part = np.empty(len(cells), dtype=object)
                        part[:] = [spelling.value(cell) for cell in cells]
                    columns[name].append(part)
                if not has_texts <= texts:  # read the numbers before this text as texts too
                    break
            else:
                parts = {name: part[1:] or part for name, part in columns.items()}
                table = {name: np.concatenate(part) for name, part in parts.items()}
                return _checked(Table(path, table, np.array(lines[1:], dtype=np.int64)))
        texts |= has_texts


def _rows(file: TextIO, delimiter: str) -> Any:
    """Return a reader of the rows. Spreadsheets may write the delimiter into a line before the names: `sep=;`."""
    first = file.readline().lstrip("\ufeff")  # a second byte order mark
    if declared := re.fullmatch(r"sep=(.)\r?\n", first):
        delimiter, first = declared[1], "\n"
    lines = itertools.chain([first], file)
    return csv.reader(lines, delimiter=delimiter, skipinitialspace=delimiter != " ")


def _check_names(path: Path, names: Sequence[str]) -> None:
    if not any(names):
        raise DataError(f"the first line of {path} names no columns")
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise DataError(f"the first line of {path} names the column {double!r} twice")


def _chunks(path: Path, rows: Any, names: Sequence[str], lines: list[int]) -> Iterator[list[list[str]]]:
    """Yield lists of rows, and add the line of each row to `lines`."""

    def checked() -> Iterator[list[str]]:
        for row in rows:
            if row:  # else the line is empty
                if len(row) != len(names):
                    place = f"line {rows.line_num} of {path}"
                    message = f"{place} has {len(row)} cells, but there are {len(names)} columns"
                    raise DataError(message, remedy="correct the line, or data.delimiter")
                lines.append(rows.line_num)
                yield row

    checked_rows = checked()
    while chunk := list(itertools.islice(checked_rows, _CHUNK_ROWS)):
        yield chunk


def _numbers(cells: Sequence[str], spelling: Spelling) -> np.ndarray | None:
    """Return cells as float64, (N,), with NaN where they are missing; None if there is something else than numbers."""
    words = spelling.missing_words
    texts = ["nan" if cell.strip() in words else cell for cell in cells]
    if spelling.decimal == ",":
        texts = [spelling.number(text) for text in texts]
    try:
        numbers = np.array(texts, dtype=np.float64)
    except ValueError:
        return None
    num_missing = sum(cell.strip() in words for cell in cells) if np.isnan(numbers).any() else 0
    has_word = "_" in "".join(texts) or np.isnan(numbers).sum() > num_missing  # Python reads nan and 1_0
    return None if has_word else numbers


def one_spelling(text: str) -> str:
    """Return a text, but a number as all texts of its value: `1` for 01 and 1.0.

    >>> [one_spelling(text) for text in ("01", "1.0", "-0.50", "+.5", "0", "1e2", "1e-5", "1_0", "a1", "nan")]
    ['1', '1', '-0.5', '0.5', '0', '100', '0.00001', '1_0', 'a1', 'nan']
    """
    if not text[-1:].isdecimal() and text[-1:] != ".":
        return text
    sign, digits = "-" * text.startswith("-"), text.lstrip("+-")
    whole, _, part = digits.partition(".")
    if not (whole + part).isdecimal() or len(text) - len(digits) > 1:
        is_power = is_number(text) and math.isfinite(float(text))
        return one_spelling(f"{Decimal(text):f}") if is_power else text
    whole, part = whole.lstrip("0").zfill(1), part.rstrip("0")
    rest = f".{part}" if part else ""
    return f"{sign if whole + part != '0' else ''}{whole}{rest}"


def _checked(table: Table) -> Table:
    if not table.num_rows:
        raise DataError(f"{table.path} has no rows")
    for name, cells in table.columns.items():
        if not is_text(cells) and (is_huge := np.abs(cells) > _LARGEST).any():
            row = int(is_huge.argmax())
            shown = f"{cells[row]:g}, larger than float32 can hold" if np.isfinite(cells[row]) else "infinite"
            raise DataError(f"{table.place(row, name)}: the number is {shown}", remedy="correct it")
    return table


_NUMBER_SIGNS = re.compile(r"[,%$€£'\s\u2212]")
"""What numbers are written with that are no numbers to a program: 1,234 and 12 %."""

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
    texts = frozenset(name for name in (*names, *targets) if is_text(table.columns[name]))
    for name in sorted(texts - {*listed, *as_classes}):
        key = "data.classes=true" if name in targets else f"data.categorical={shown([name])}"
        _check_kind(table, name, spelling, f"{shell_line([key])} takes all cells as texts")
    limit = settings["max_categories"]
    categories = {n: _categories(table, n, limit) for n in names if is_text(table.columns[n])}
    numbers = tuple(name for name in names if name not in categories)
    classes = _classes(table, targets, settings["classes"])
    is_one_hot = settings["categories"] == "one_hot"
    return Layout(numbers, categories, tuple(targets), classes, texts, is_one_hot, spelling), table


def _check_kind(table: Table, name: str, spelling: Spelling, meant: str) -> None:
    """Refuse a column in which some cells are numbers, or are but for a sign such as `%`, and others are none.

    Args:
        meant: the override that takes all of its cells as texts, with its meaning.
    """
    cells = table.columns[name]
    text = spelling.first_text(cells)
    if text is None or not any(cell is not None and is_number(_NUMBER_SIGNS.sub("", cell)) for cell in cells):
        return
    row, cell = text
    remedy = f"{meant}, {spelling.remedy(cell)}; or correct the cell"
    raise ConfigError("data.train", f"{cell!r} in {table.place(row, name)} is no number", remedy=remedy)


def layout_of(node: DictConfig) -> Layout | None:
    """Return the layout of a node `data`; None if a required key is missing, which the check of the config reports."""
    from omegaconf import OmegaConf  # the training loop imports this module, but no config library

    shapes = ("input_shape", "num_classes")
    if any(OmegaConf.is_missing(node, key) for key in node):
        return None
    return read_layout({str(key): node[key] for key in node if key not in shapes})[0]


def _categories(table: Table, name: str, limit: int) -> tuple[str, ...]:
    cells = table.columns[name]
    found = _distinct(cells)
    if len(found) > limit:
        row, cell = next((row, cell) for row, cell in enumerate(cells) if cell is not None)
        message = f"{name!r} has {len(found)} different texts, such as {cell!r} ({table.place(row, name)})"
        allowed = f"allow data.max_categories={len(found)}"
        remedy = f"leave the column out by data.features, correct it, or {allowed}"
        raise ConfigError("data.features", message, remedy=remedy)
    return found


def _classes(table: Table, targets: Sequence[str], setting: bool | str) -> tuple[str, ...] | None:
    """Return the classes of the target; None if the targets are numbers.

    Raises:
        ConfigError: it has texts beside `data.classes=false`, or whole numbers may be either and `data.classes=auto`.
    """
    for name in targets:
        cells = table.columns[name]
        if is_text(cells) and (setting is False or len(targets) > 1):
            message = f"{name!r} has texts, such as {cells[0]!r}; several targets are numbers"
            raise ConfigError("data.target", message)
    cells, name = table.columns[targets[0]], targets[0]
    if is_text(cells):
        return _distinct(cells)
    values = np.unique(cells)
    is_whole = len(targets) == 1 and bool((values == np.floor(values)).all())
    if setting is False or not is_whole or len(values) > MAX_GUESSED_CLASSES:
        return None
    if len(values) > 1 and np.array_equal(values, np.arange(len(values))):
        return tuple(str(int(value)) for value in values)
    span = f"{int(values[0])} to {int(values[-1])}"
    message = f"the target {name!r} has {len(values)} whole numbers from {span}"
    raise ConfigError("data.classes", f"{message}; true makes them classes, false numbers")


def _distinct(cells: np.ndarray) -> tuple[str, ...]:
    """Return the different texts, numbers among them first and by their value, each in one spelling."""
    texts = {one_spelling(cell) for cell in {*cells} if cell is not None}
    return tuple(
        sorted(texts, key=lambda text: (0, float(text), text) if is_number(text) else (1, 0.0, text))
    )


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
