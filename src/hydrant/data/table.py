"""A table in CSV files: numbers and categories as inputs; numbers or classes as targets.

The rows of tables as inputs and targets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hydrant.batch import Tensors
from hydrant.data.base import Data, Indices, Reader
from hydrant.data.csv_file import Layout, Table, is_text, missing_rows, one_spelling, read_layout, read_table
from hydrant.data.dataset import cut_rows
from hydrant.data.in_memory import InMemorySource
from hydrant.errors import ConfigError, DataError, log, typed_line


@dataclass(frozen=True)
class Statistics:
    """The columns of the inputs in their order, and the mean and the deviation of the training rows."""

    numbers: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]
    mean: Mapping[str, float]  # of `numbers` and standardized targets
    std: Mapping[str, float]

    @classmethod
    def measure(
        cls, layout: Layout, table: Table, rows: np.ndarray, standardized: Collection[str]
    ) -> Statistics:
        mean, std = dict[str, float](), dict[str, float]()
        for name in sorted({*layout.numbers, *standardized}):
            cells = table.columns[name][rows]
            cells = cells[~np.isnan(cells)]
            if not len(cells):
                raise ConfigError("data.features", f"the column {name!r} has no number in the training lines")
            is_constant = cells.min() == cells.max()  # rounding gives equal numbers a tiny deviation
            mean[name] = float(cells[0] if is_constant else cells.mean())
            std[name] = 1.0 if is_constant else float(cells.std())
        return cls(layout.numbers, layout.categories, mean, std)

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> Statistics:
        """Undo `plain`."""
        numbers, categories = tuple(plain["numbers"]), plain["categories"]
        mean, std = (
            {str(name): float(value) for name, value in plain[key].items()} for key in ("mean", "std")
        )
        if missing := {*numbers} - mean.keys() or mean.keys() ^ std.keys():
            raise KeyError(*missing)
        return cls(numbers, {str(name): tuple(texts) for name, texts in categories}, mean, std)

    def plain(self) -> dict[str, Any]:
        categories = [[name, list(texts)] for name, texts in self.categories.items()]
        columns = {"numbers": list(self.numbers), "categories": categories}
        return columns | {"mean": dict(self.mean), "std": dict(self.std)}


class Encoder:
    """Turns rows of tables into inputs and targets, by the layout and the statistics of the training rows."""

    def __init__(
        self, layout: Layout, statistics: Statistics, standardized: Collection[str], *, fills: bool
    ) -> None:
        self._layout, self._fills, self._standardized = layout, fills, standardized
        self._mean, self._std = statistics.mean, statistics.std

    def source(self, table: Table, *, is_single: bool) -> InMemorySource:
        """Return the rows of a table as samples.

        Raises:
            ConfigError: a column or a cell does not fit the layout.
        """
        table.check_columns(self._layout.targets, "data")
        return InMemorySource(self._inputs(table), self._targets(table, is_single))

    def unlabelled(self, files: Sequence[Path]) -> InMemorySource:
        """Return the rows of a file that needs no targets.

        Raises:
            ConfigError: there are several files, or a column or a cell does not fit the layout.
        """
        if len(files) > 1:
            raise ConfigError("inputs", f"{len(files)} tables are given; one is read at a time")
        layout = self._layout
        table = read_table(str(files[0]), layout.spelling, "inputs", layout.texts, min_columns=1)
        return InMemorySource(self._inputs(table), ())

    def in_target_units(self, targets: Tensor) -> Tensor:
        """Return standardized targets, (B,) or (B, K), in the units of their columns: float64 on the host.

        In float32, numbers with a large mean and a small deviation, such as times, would be rounded to a few values.
        """
        mean, std = (
            torch.tensor([values[name] for name in self._layout.targets], dtype=torch.float64)
            for values in (self._mean, self._std)
        )
        return targets.cpu().double() * std + mean

    def _inputs(self, table: Table) -> Tensors:
        layout, num_rows = self._layout, table.num_rows
        table.check_columns([*layout.numbers, *layout.categories], "data")
        numbers = [torch.from_numpy(self._numbers(table, name)) for name in layout.numbers]
        codes = [torch.from_numpy(self._codes(table, name)) for name in layout.categories]
        if not layout.is_one_hot:
            return {
                "numbers": torch.stack(numbers, dim=1) if numbers else torch.zeros(num_rows, 0),
                "categories": torch.stack(codes, dim=1) if codes else torch.zeros(num_rows, 0).long(),
            }
        sizes = map(len, layout.categories.values())
        one_hot = [
            torch.nn.functional.one_hot(code, size + 1)[:, 1:].float()
            for code, size in zip(codes, sizes, strict=True)
        ]
        return torch.cat([*(column.unsqueeze(1) for column in numbers), *one_hot], dim=1)

    def _numbers(self, table: Table, name: str) -> np.ndarray:
        """Return a column of numbers, float32 (N,), standardized if it is one of these."""
        cells, spelling = table.columns[name], self._layout.spelling
        if is_text(cells) and (text := spelling.first_text(cells)) is not None:
            message = f"{text[1]!r} in {table.place(text[0], name)} is no number, as in data.train"
            raise ConfigError("data", message, remedy=f"{spelling.remedy(text[1])}; or correct the cell")
        if name not in self._layout.targets:  # few names
            self._check_filled(table, name, missing_rows(cells))
            cells = np.where(np.isnan(cells), self._mean[name], cells)
        if name in self._standardized:
            with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # it is checked
                cells = (cells - self._mean[name]) / self._std[name]
        with np.errstate(over="ignore"):
            numbers = cells.astype(np.float32)
        if len(wrong := np.flatnonzero(~np.isfinite(numbers))):
            reason = f"standardized by {self._mean[name]:g} and {self._std[name]:g} it does not fit float32"
            message = f"{table.place(int(wrong[0]), name)}: {reason}"
            raise ConfigError("data.standardize", message, remedy="correct the cell")
        return numbers

    def _codes(self, table: Table, name: str) -> np.ndarray:
        """Return a column of categories as codes, int64 (N,)."""
        cells = table.columns[name]
        if not is_text(cells):
            message = f"the column {name!r} of {table.path} holds numbers alone, but texts when the run began"
            raise ConfigError("data", message, remedy="give the file that the run was trained with")
        self._check_filled(table, name, missing_rows(cells))
        codes = {category: code for code, category in enumerate(self._layout.categories[name], start=1)}
        result = np.array(
            [0 if cell is None else codes.get(one_spelling(cell), 0) for cell in cells], dtype=np.int64
        )
        unknown = [row for row in np.flatnonzero(result == 0).tolist() if cells[row] is not None]
        if unknown:
            found = f"{len(unknown)} of {len(cells)} cells are no category of data.train"
            place = table.place(unknown[0], name)
            log.warning("%s, the first of them: %r in %s", found, cells[unknown[0]], place)
        return result

    def _check_filled(self, table: Table, name: str, empty: np.ndarray) -> None:
        if len(empty) and not self._fills:
            message = f"{table.place(int(empty[0]), name)} has no value ({len(empty)} in this column)"
            raise ConfigError("data.missing", f"{message}; data.missing=mean fills them, or correct the file")

    def _targets(self, table: Table, is_single: bool) -> Tensor:
        layout, names = self._layout, self._layout.targets
        for name in names:
            if len(empty := missing_rows(table.columns[name])):
                message = f"has no value in {table.place(int(empty[0]), name)}"
                raise ConfigError("data.target", message, remedy="remove or fill the line")
        if layout.classes is None:
            columns = [torch.from_numpy(self._numbers(table, name)) for name in names]
            return columns[0] if is_single else torch.stack(columns, dim=1)
        cells, indices = table.columns[names[0]], {name: n for n, name in enumerate(layout.classes)}
        cells = [one_spelling(str(cell)) for cell in cells.tolist()]
        unknown = next((row for row, cell in enumerate(cells) if cell not in indices), None)
        if unknown is not None:
            message = f"{cells[unknown]!r} in {table.place(unknown, names[0])} is no class of data.train"
            raise ConfigError("data.target", message)
        return torch.tensor([indices[cell] for cell in cells])


_SUFFIXES = (".csv", ".tsv", ".txt")
_EXTRA = "extra_val."
"""The names of the extra validation sets begin with it."""


def csv(
    *,
    train: str,
    val: str | None,
    test: str | None,
    extra_val: Mapping[str, str],
    val_ratio: float,
    test_ratio: float,
    split_seed: int,
    target: str | list[str],
    features: list[str] | None,
    categorical: list[str],
    categories: Literal["one_hot", "codes"],
    max_categories: int,
    standardize: bool,
    standardize_targets: bool,
    missing: Literal["fail", "mean"],
    missing_words: list[str | int | float],
    classes: bool | Literal["auto"],
    delimiter: str,
    decimal: Literal[".", ","],
    input_shape: Sequence[int] | None,
    num_classes: int | None,
) -> Data:
    """Return the lines of CSV files as samples, held on the device; conf/data/csv.yaml explains the arguments.

    With `categories=one_hot` inputs are float32 (B, N): the numbers, then a number for each category of each column.
    With `codes` they are a dict: `numbers`, float32 (B, N), and `categories`, int64 (B, M) for M columns. Code 0 is a
    category that is missing or that `train` does not have; the others count from 1, in the order of the categories.

    Targets are class indices, int64 (B,); or numbers, float32: (B,) of one column, (B, K) of a list of K columns.

    Raises:
        ConfigError: the columns do not fit the arguments, or a cell is missing.
        DataError: a file cannot be read.
    """
    layout, table = read_layout({
        "train": train, "target": target, "features": features, "categorical": categorical, "categories": categories,
        "max_categories": max_categories, "classes": classes, "delimiter": delimiter,
        "decimal": decimal, "missing_words": missing_words,
    })  # fmt: skip
    _check_shapes(layout, input_shape, num_classes)
    files = {split: file for split, file in {"val": val, "test": test}.items() if file is not None}
    files |= {f"{_EXTRA}{name}": file for name, file in extra_val.items()}
    ratios = {
        split: 0.0 if split in files else ratio
        for split, ratio in {"val": val_ratio, "test": test_ratio}.items()
    }
    rows = cut_rows(table.num_rows, ratios, split_seed)
    tables = {
        split: read_table(file, layout.spelling, f"data.{split}", layout.texts)
        for split, file in files.items()
    }
    targets = layout.targets if standardize_targets and layout.classes is None else ()
    standardized = frozenset((*(layout.numbers if standardize else ()), *targets))
    fills, is_single = missing == "mean", isinstance(target, str)
    lines = _Lines(layout, table, rows, tables, standardized, fills=fills, is_single=is_single)
    return lines.data(range(len(rows["train"])))


@dataclass(frozen=True)
class _Lines:
    """The lines of all files, and the layout of their columns."""

    layout: Layout
    table: Table  # of the training file
    rows: Mapping[str, np.ndarray]  # of this table, by split
    others: Mapping[str, Table]  # of splits that have a file
    standardized: frozenset[str]
    _: KW_ONLY
    fills: bool
    is_single: bool

    def data(self, training: Indices) -> Data:
        """Return the splits, prepared by the statistics of these training samples.

        Raises:
            ConfigError: a column or a cell does not fit the layout.
        """
        rows = self.rows["train"][np.asarray(training)]
        measured = Statistics.measure(self.layout, self.table, rows, self.standardized)
        return dataclasses.replace(self._prepared(measured), with_statistics_of=self.data)

    def data_as_learned(self, statistics: Mapping[str, Any]) -> Data:
        """Return the splits, prepared as for the run that saved these statistics.

        Raises:
            DataError: they are of other columns.
        """
        try:
            learned = Statistics.of_plain(statistics)
            if missing := {*self.layout.targets} & self.standardized - learned.mean.keys():
                raise KeyError(*missing)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            message = f"the statistics of the columns in the checkpoint do not fit ({typed_line(error)})"
            raise DataError(message, remedy="set data as it was in training") from error
        return self._prepared(learned)

    def _prepared(self, statistics: Statistics) -> Data:
        layout = dataclasses.replace(
            self.layout, numbers=statistics.numbers, categories=statistics.categories
        )
        encoder = Encoder(layout, statistics, self.standardized, fills=self.fills)
        whole = encoder.source(self.table, is_single=self.is_single)
        sources = {split: whole.subset(part) for split, part in self.rows.items()}
        for split, other in self.others.items():
            sources[split] = encoder.source(other, is_single=self.is_single)
        return Data(
            sources["train"],
            sources["val"],
            (layout.num_inputs,) if layout.is_one_hot else None,
            None if layout.classes is None else len(layout.classes),
            extra_val={
                split.removeprefix(_EXTRA): source
                for split, source in sources.items()
                if split.startswith(_EXTRA)
            },
            test=sources["test"] if sources["test"].num_samples else None,
            class_names=layout.classes,
            reader=Reader(
                files=encoder.unlabelled,
                suffixes=_SUFFIXES,
                is_sample_per_file=False,
            ),
            in_target_units=encoder.in_target_units if self.standardized & {*layout.targets} else None,
            statistics=statistics.plain(),
            with_statistics=self.data_as_learned,
            target_names=tuple(layout.targets),
        )


def _check_shapes(layout: Layout, input_shape: Sequence[int] | None, num_classes: int | None) -> None:
    needed = [layout.num_inputs] if layout.is_one_hot else None
    given = None if input_shape is None else list(input_shape)
    remedy = "leave the key out, or give a saved run the file that it was trained with"
    if given != needed:
        message = f"{given} is configured, but the samples have {needed}; {remedy}"
        raise ConfigError("data.input_shape", message)
    if num_classes != layout.num_outputs:
        what = "targets" if layout.classes is None else "classes"
        message = f"{num_classes} is configured, but there are {layout.num_outputs} {what}; {remedy}"
        raise ConfigError("data.num_classes", message)
