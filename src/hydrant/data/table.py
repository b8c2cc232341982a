"""A table in CSV files: numbers and categories as inputs; numbers or classes as targets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hydrant.batch import Tensors
from hydrant.data.base import Data, Indices, Reader
from hydrant.data.csv_file import Layout, Numbers, Table, read_layout, read_table
from hydrant.data.dataset import cut_rows
from hydrant.data.in_memory import InMemorySource
from hydrant.errors import ConfigError, DataError, log, typed_line


@dataclass(frozen=True)
class Encoder:
    """Turns rows of tables into inputs and targets, by the layout and the statistics of the training rows."""

    layout: Layout
    scales: Mapping[str, tuple[float, float]]  # mean and deviation of the training rows, by column
    standardized: frozenset[str]
    _: KW_ONLY
    fills: bool

    def source(self, table: Table, *, is_single: bool) -> InMemorySource:
        """Return the rows of a table as samples.

        Raises:
            ConfigError: a column or a cell does not fit the layout.
        """
        table.check_columns(self.layout.targets, "data")
        return InMemorySource(self._inputs(table), self._targets(table, is_single))

    def unlabelled(self, files: Sequence[Path]) -> InMemorySource:
        """Return the rows of a file that needs no targets.

        Raises:
            ConfigError: there are several files, or a column or a cell does not fit the layout.
        """
        if len(files) > 1:
            raise ConfigError("inputs", f"{len(files)} tables are given; one is read at a time")
        layout = self.layout
        table = read_table(str(files[0]), layout.spelling, "inputs", layout.texts, min_columns=1)
        return InMemorySource(self._inputs(table), ())

    def in_target_units(self, targets: Tensor) -> Tensor:
        """Return standardized targets, (B,) or (B, K), in the units of their columns: float64 on the host.

        In float32, numbers with a large mean and a small deviation, such as times, would be rounded to a few values.
        """
        scales = torch.tensor([self.scales[name] for name in self.layout.targets], dtype=torch.float64)
        mean, std = scales.unbind(1)
        return targets.cpu().double() * std + mean

    def _inputs(self, table: Table) -> Tensors:
        layout, num_rows = self.layout, table.num_rows
        table.check_columns([*layout.numbers, *layout.categories], "data")
        for name in (*layout.numbers, *layout.categories):
            if len(empty := table.columns[name].missing) and not self.fills:
                message = f"{table.place(int(empty[0]), name)} has no value ({len(empty)} in this column)"
                remedy = "data.missing=mean fills them, or correct the file"
                raise ConfigError("data.missing", message, remedy=remedy)
        numbers = [self._numbers(table, name) for name in layout.numbers]
        codes = [self._codes(table, name) for name in layout.categories]
        columns = torch.stack(numbers, dim=1) if numbers else torch.zeros(num_rows, 0)
        if not layout.is_one_hot:
            categories = torch.stack(codes, dim=1) if codes else torch.zeros(num_rows, 0).long()
            return {"numbers": columns, "categories": categories}
        one_hot = [
            torch.nn.functional.one_hot(code, len(names) + 1)[:, 1:].float()
            for code, names in zip(codes, layout.categories.values(), strict=True)
        ]
        return torch.cat([columns, *one_hot], dim=1)

    def _numbers(self, table: Table, name: str) -> Tensor:
        """Return a column of numbers, float32 (N,), standardized if it is one of these."""
        column = table.numbers(name, self.layout.spelling)
        fill, std = self.scales.get(name, (0.0, 1.0))
        mean, std = (fill, std) if name in self.standardized else (0.0, 1.0)
        numbers = column.scaled(fill, mean, std)
        if len(wrong := np.flatnonzero(~np.isfinite(numbers))):
            reason = f"standardized by {mean:g} and {std:g} it does not fit float32"
            message = f"{table.place(int(wrong[0]), name)}: {reason}"
            raise ConfigError("data.standardize", message, remedy="correct the cell")
        return torch.from_numpy(numbers)

    def _codes(self, table: Table, name: str) -> Tensor:
        """Return a column of categories as codes, int64 (N,)."""
        column = table.columns[name]
        if isinstance(column, Numbers):
            message = f"the column {name!r} of {table.path} holds numbers alone, but texts when the run began"
            raise ConfigError("data", message, remedy="give the file that the run was trained with")
        codes = column.codes(self.layout.categories[name]) + 1
        unknown = [row for row in np.flatnonzero(codes == 0).tolist() if column.cells[row] is not None]
        if unknown:
            count = f"{len(unknown)} of {len(codes)} cells are no category of data.train"
            place = table.place(unknown[0], name)
            log.warning("%s, the first of them: %r in %s", count, column.cells[unknown[0]], place)
        return torch.from_numpy(codes)

    def _targets(self, table: Table, is_single: bool) -> Tensor:
        layout, names = self.layout, self.layout.targets
        for name in names:
            if len(empty := table.columns[name].missing):
                message = f"has no value in {table.place(int(empty[0]), name)}"
                raise ConfigError("data.target", message, remedy="remove or fill the line")
        if layout.classes is None:
            columns = [self._numbers(table, name) for name in names]
            return columns[0] if is_single else torch.stack(columns, dim=1)
        [name] = names
        column = table.columns[name] if name in layout.texts else table.numbers(name, layout.spelling)
        if len(unknown := np.flatnonzero((codes := column.codes(layout.classes)) < 0)):
            cell, place = str(column.cells[unknown[0]]), table.place(int(unknown[0]), name)
            raise ConfigError("data.target", f"{cell!r} in {place} is no class of data.train")
        return torch.from_numpy(codes)


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
    layout, table = read_layout(locals())
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
    tables: Mapping[str, Table]  # of splits that have a file of their own
    standardized: frozenset[str]
    _: KW_ONLY
    fills: bool
    is_single: bool

    def data(self, training: Indices) -> Data:
        """Return the splits, prepared by the statistics of these training samples.

        Raises:
            ConfigError: a column or a cell does not fit the layout.
        """
        rows, mean, std = self.rows["train"][np.asarray(training)], dict[str, float](), dict[str, float]()
        for name in sorted({*self.layout.numbers, *self.standardized}):
            cells = self.table.columns[name].cells[rows]
            cells = cells[~np.isnan(cells)]
            if not len(cells):
                raise ConfigError("data.features", f"the column {name!r} has no number in the training lines")
            is_constant = cells.min() == cells.max()  # rounding gives equal numbers a tiny deviation
            mean[name] = float(cells[0] if is_constant else cells.mean())
            std[name] = 1.0 if is_constant else float(cells.std())
        categories = [[name, list(texts)] for name, texts in self.layout.categories.items()]
        columns = {"numbers": list(self.layout.numbers), "categories": categories}
        data = self.data_as_learned(columns | {"mean": mean, "std": std})
        return dataclasses.replace(data, with_statistics_of=self.data)

    def data_as_learned(self, statistics: Mapping[str, Any]) -> Data:
        """Return the splits, prepared as for the run that saved these statistics.

        Raises:
            DataError: they are of other columns.
        """
        try:
            numbers, mean, std = tuple(statistics["numbers"]), statistics["mean"], statistics["std"]
            categories = {str(name): tuple(texts) for name, texts in statistics["categories"]}
            needed = {*numbers, *({*self.layout.targets} & self.standardized)}
            scales = {name: (float(mean[name]), float(std[name])) for name in needed}
        except (LookupError, TypeError, ValueError) as error:
            message = f"the statistics of the columns in the checkpoint do not fit ({typed_line(error)})"
            raise DataError(message, remedy="set data as it was in training") from error
        layout = dataclasses.replace(self.layout, numbers=numbers, categories=categories)
        encoder = Encoder(layout, scales, self.standardized, fills=self.fills)
        whole = encoder.source(self.table, is_single=self.is_single)
        sources = {split: whole.subset(part) for split, part in self.rows.items()}
        for split, table in self.tables.items():
            sources[split] = encoder.source(table, is_single=self.is_single)
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
            reader=Reader(files=encoder.unlabelled, suffixes=_SUFFIXES, is_sample_per_file=False),
            in_target_units=encoder.in_target_units if self.standardized & {*layout.targets} else None,
            statistics=statistics,
            with_statistics=self.data_as_learned,
            target_names=tuple(layout.targets),
        )


def _check_shapes(layout: Layout, input_shape: Sequence[int] | None, num_classes: int | None) -> None:
    needed = [layout.num_inputs] if layout.is_one_hot else None
    configured = None if input_shape is None else list(input_shape)
    remedy = "leave the key out, or give a saved run the file that it was trained with"
    if configured != needed:
        message = f"{configured} is configured, but the samples have {needed}"
        raise ConfigError("data.input_shape", message, remedy=remedy)
    if num_classes != layout.num_outputs:
        noun = "targets" if layout.classes is None else "classes"
        message = f"{num_classes} is configured, but there are {layout.num_outputs} {noun}"
        raise ConfigError("data.num_classes", message, remedy=remedy)
