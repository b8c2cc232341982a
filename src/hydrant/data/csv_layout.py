"""The meaning of a CSV file's columns: numbers, categories and targets. Shapes in the config depend on it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hydrant.data.csv_file import Spelling, Table, is_text, one_spelling, read_table
from hydrant.errors import ConfigError, shown
from hydrant.files.csv_text import is_number
from hydrant.terminal.shell import shell_line

if TYPE_CHECKING:
    from omegaconf import DictConfig

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
    remedy = f"{spelling.remedy(cell)}, {meant}; or correct the cell"
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
