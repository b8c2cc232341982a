"""The meaning of a CSV file's columns: numbers, categories and targets. Shapes in the config depend on it."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hydrant.data.csv_file import Table, is_text, missing_rows, one_spelling, read_table
from hydrant.errors import ConfigError, shown
from hydrant.files.csv_text import is_number
from hydrant.terminal.shell import shell_line

if TYPE_CHECKING:
    from omegaconf import DictConfig

_NUMBER_SIGNS = re.compile(r"[,%$€£'\s\u2212]")
"""What numbers are written with that are no numbers to a program: 1,234 and 12 %."""

_DATE = re.compile(r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{4})([T ].*)?")
"""A date as most programs write it, perhaps with a time: 2026-11-27, 27.11.2026, 11/27/2026 09:30."""

MAX_GUESSED_CLASSES = 20
"""Whole numbers with at most this many different values may be classes or numbers."""

_MIN_NUMBERED_LINES = 10
"""In fewer lines, numbers that follow each other may be chance."""

_MAX_LISTED = 10
"""A command with more names is too long to read."""


@dataclass(frozen=True)
class Layout:
    """The meaning of the columns of the training file."""

    numbers: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]  # by column, in order
    targets: tuple[str, ...]
    classes: tuple[str, ...] | None  # of the target, in order; None: the targets are numbers
    texts: frozenset[str]  # the columns that are read as texts
    is_one_hot: bool

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
    path, delimiter = settings["train"], settings["delimiter"]
    table = read_table(path, delimiter, "data.train", [*listed, *as_classes])
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
    limit = settings["max_categories"]
    categories = {n: _categories(table, n, limit) for n in names if is_text(table.columns[n])}
    numbers = tuple(name for name in names if name not in categories)
    classes = _classes(table, targets, settings["classes"])
    texts = frozenset(name for name in (*names, *targets) if is_text(table.columns[name]))
    is_one_hot = settings["categories"] == "one_hot"
    return Layout(numbers, categories, tuple(targets), classes, texts, is_one_hot), table


def number_like_columns(layout: Layout, table: Table, listed: Collection[str]) -> Iterator[str]:
    """Yield a message for each column of texts most of which look like numbers, except of the `listed` columns."""
    for name in sorted(layout.texts - set(listed)):
        cells = {row: cell for row, cell in enumerate(table.columns[name]) if cell is not None}
        texts = [row for row, cell in cells.items() if not is_number(cell)]
        num_alike = sum(is_number(_NUMBER_SIGNS.sub("", cell)) for cell in cells.values())
        if texts and 2 * num_alike > len(cells):
            is_input = name in layout.categories
            kind, key = (
                ("category", f"data.categorical=[{name}]") if is_input else ("class", "data.classes=true")
            )
            reason = f"{cells[texts[0]]!r} is no number, so each text of the column is a {kind}"
            remedy = f"correct or empty the cell, or if that is meant, set {key}"
            yield f"{table.place(texts[0], name)}: {reason}; {remedy}"


def date_columns(layout: Layout, table: Table, listed: Collection[str]) -> Iterator[str]:
    """Yield a message for each column of inputs most of whose texts are dates, except of the `listed` columns."""
    for name, texts in layout.categories.items():
        dates = [text for text in texts if _DATE.fullmatch(text)]
        if name not in listed and 2 * len(dates) > len(texts):
            found = f"{table.path}: the column {name!r} has dates, such as {dates[0]!r}; each is a category"
            remedy = "write numbers for what counts, such as the month, leave the column out by data.features"
            meant = f"or if that is meant, set data.categorical=[{name}]"
            yield f"{found}, which tells nothing about other dates; {remedy}, {meant}"


def numbering_columns(layout: Layout, table: Table) -> Iterator[str]:
    """Yield a message for each column of inputs that numbers the lines, such as the index that pandas writes."""
    inputs = (*layout.numbers, *layout.categories)
    for name in layout.numbers:
        cells = table.columns[name]
        if not name or name.startswith("Unnamed: "):  # of pandas, whose index may be shuffled, or a part
            steps = np.diff(np.sort(cells))
            numbers_lines = bool(((steps > 0) & (steps % 1 == 0)).all())
        else:
            numbers_lines = cells[0] in (0, 1) and bool((np.diff(cells) == 1).all())  # years begin elsewhere
        if numbers_lines and len(inputs) > 1 and len(cells) >= _MIN_NUMBERED_LINES:
            reason = (
                f"the column {name!r} numbers the lines, so it tells their order, but nothing of new lines"
            )
            word = f"data.features={shown([other for other in inputs if other != name])}"
            remedy = f"by {shell_line([word])}" if len(inputs) <= _MAX_LISTED + 1 else "of data.features"
            yield f"{table.path}: {reason}; leave it out {remedy}, or name it in data.features if it is meant"


def columns_with_two_spellings(layout: Layout, table: Table) -> Iterator[str]:
    """Yield a message for each column of which two categories or classes differ in case or blanks only."""
    classes = {layout.targets[0]: layout.classes} if layout.classes is not None else {}
    for name, texts in {**layout.categories, **classes}.items():
        groups: dict[str, list[str]] = {}
        for text in texts:
            plain = unicodedata.normalize("NFKC", text).casefold()
            groups.setdefault(" ".join(plain.split()), []).append(text)
        alike = [group for group in groups.values() if len(group) > 1]
        if alike:
            cells = [one_spelling(str(cell)) for cell in table.columns[name].tolist()]
            rare, *_, usual = sorted(alike[0], key=Counter(cells).__getitem__)
            kind = "categories" if name in layout.categories else "classes"
            found = f"{table.place(cells.index(rare), name)}: {rare!r} and {usual!r} are two {kind}"
            num_more = len(alike) - 1
            more = f" ({num_more} more group{'s' * (num_more > 1)} of such {kind})" if num_more else ""
            yield f"{found}{more}; write them alike if they mean the same"


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
        rows = [row for row, cell in enumerate(cells) if cell is not None]
        row = next((row for row in rows if not is_number(cells[row])), rows[0])
        message = (
            f"{name!r} has {len(found)} different texts, such as {cells[row]!r} ({table.place(row, name)})"
        )
        remedy = (
            f"leave the column out by data.features, correct it, or allow data.max_categories={len(found)}"
        )
        raise ConfigError("data.features", message, remedy=remedy)
    return found


def _classes(table: Table, targets: Sequence[str], setting: bool | str) -> tuple[str, ...] | None:
    """Return the classes of the target; None if the targets are numbers.

    Raises:
        ConfigError: it has no values, or whole numbers may be either and `data.classes=auto`.
    """
    for name in targets:
        cells = table.columns[name]
        if len(missing := missing_rows(cells)):
            raise ConfigError("data.target", f"has no value in {table.place(int(missing[0]), name)}")
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
