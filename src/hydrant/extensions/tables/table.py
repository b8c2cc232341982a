"""A table in CSV files: numbers and categories as inputs; numbers or classes as targets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hydrant.batch import Tensors
from hydrant.data import Data, Indices, InMemorySource, Reader
from hydrant.data.dataset import cut_rows, make_parts
from hydrant.errors import ConfigError, log
from hydrant.extensions.tables.csv_file import Layout, Table, read_layout


@dataclass(frozen=True)
class Encoder:
    """Turns rows of tables into inputs and targets, by the layout and the statistics of the training rows."""

    layout: Layout
    scales: Mapping[str, tuple[float, float]]  # mean and deviation of the training rows, by column

    def source(self, table: Table) -> InMemorySource:
        """Return the rows of a table as samples.

        Raises:
            ConfigError: a column or a cell does not fit the layout.
        """
        table.check_columns(self.layout.targets, "data")
        return InMemorySource(self._inputs(table), self._targets(table))

    def unlabelled(self, files: Sequence[Path]) -> InMemorySource:
        """Return the rows of a file that needs no targets.

        Raises:
            ConfigError: there are several files, or a column or a cell does not fit the layout.
        """
        if len(files) > 1:
            raise ConfigError("inputs", f"{len(files)} tables are given; one is read at a time")
        return InMemorySource(self._inputs(self.layout.read(str(files[0]), "inputs")), ())

    def in_target_units(self, targets: Tensor) -> Tensor:
        """Return standardized targets, (B,) or (B, K), in the units of their columns: float64 on the host.

        In float32, numbers with a large mean and a small deviation, such as times, would be rounded to a few values.
        """
        scales = torch.tensor([self.scales[name] for name in self.layout.targets], dtype=torch.float64)
        mean, std = scales.unbind(1)
        return targets.cpu().double() * std + mean

    def _inputs(self, table: Table) -> Tensors:
        layout = self.layout
        names = [*layout.numbers, *layout.categories]
        table.check_columns(names, "data")
        if layout.settings["missing"] == "fail":
            table.check_filled(names, "data.missing", "data.missing=mean fills them, or correct the file")
        numbers = self._numbers(table, layout.numbers)
        codes = [self._codes(table, name) for name in layout.categories]
        if not layout.is_one_hot:
            categories = torch.stack(codes, dim=1) if codes else torch.zeros(len(table.lines), 0).long()
            return {"numbers": numbers, "categories": categories}
        one_hot = [
            torch.nn.functional.one_hot(code, len(names) + 1)[:, 1:].float()
            for code, names in zip(codes, layout.categories.values(), strict=True)
        ]
        return torch.cat([numbers, *one_hot], dim=1)

    def _numbers(self, table: Table, names: Sequence[str]) -> Tensor:
        """Return columns of numbers, float32 (N, K), standardized if they are some of these."""
        numbers = torch.zeros(len(table.lines), len(names))
        for place, name in enumerate(names):
            table.check_numbers(name)
            fill, std = self.scales.get(name, (0.0, 1.0))
            mean, std = (fill, std) if name in self.layout.standardized else (0.0, 1.0)
            numbers[:, place] = torch.from_numpy(table.columns[name].scaled(fill, mean, std))
        return numbers

    def _codes(self, table: Table, name: str) -> Tensor:
        """Return a column of categories as codes, int64 (N,)."""
        column = table.columns[name]
        if not column.is_text:
            message = f"the column {name!r} of {table.path} holds numbers alone, but texts when the run began"
            raise ConfigError("data", message, remedy="give the file that the run was trained with")
        codes = column.codes(self.layout.categories[name]) + 1
        if len(unknown := np.setdiff1d(np.flatnonzero(codes == 0), column.missing)):
            count = f"{len(unknown)} of {len(codes)} cells are no category of data.train"
            place = table.place(unknown[0], name)
            log.warning("%s, the first of them: %r in %s", count, column.cells[unknown[0]], place)
        return torch.from_numpy(codes)

    def _targets(self, table: Table) -> Tensor:
        layout = self.layout
        table.check_filled(layout.targets, "data.target", "remove or fill the line")
        if layout.classes is None:
            numbers = self._numbers(table, layout.targets)
            return numbers[:, 0].contiguous() if isinstance(layout.settings["target"], str) else numbers
        [name] = layout.targets
        if name not in layout.texts:
            table.check_numbers(name)
        codes = table.columns[name].codes(layout.classes)
        if len(unknown := np.flatnonzero(codes < 0)):
            cell, place = str(table.columns[name].cells[unknown[0]]), table.place(int(unknown[0]), name)
            raise ConfigError("data.target", f"{cell!r} in {place} is no class of data.train")
        return torch.from_numpy(codes)


_SUFFIXES = (".csv", ".tsv", ".txt")


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
    shapes = {"input_shape": layout.input_shape, "num_classes": layout.num_outputs}
    configured = {"input_shape": input_shape and list(input_shape), "num_classes": num_classes}
    for key, needed in shapes.items():
        if configured[key] != needed:
            message = f"{configured[key]} is configured, but {train} gives {needed}"
            remedy = "leave the key out, or give a saved run the file that it was trained with"
            raise ConfigError(f"data.{key}", message, remedy=remedy)
    files = {"val": val, "test": test} | {f"extra_val.{name}": file for name, file in extra_val.items()}
    tables = {split: layout.read(file, f"data.{split}") for split, file in files.items() if file is not None}
    ratios = {"val": val_ratio, "test": test_ratio}
    ratios = {split: 0.0 if split in tables else ratio for split, ratio in ratios.items()}
    rows = cut_rows(len(table.lines), ratios, split_seed)
    return _Lines(layout, table, rows, tables).data(range(len(rows["train"])))


@dataclass(frozen=True)
class _Lines:
    """The lines of all files, and the layout of their columns."""

    layout: Layout
    table: Table  # of the training file
    rows: Mapping[str, np.ndarray]  # of this table, by split
    tables: Mapping[str, Table]  # of splits that have a file of their own

    def data(self, training: Indices) -> Data:
        """Return the splits, prepared by the statistics of these training samples.

        Raises:
            ConfigError: a column or a cell does not fit the layout.
        """
        rows, mean, std = self.rows["train"][np.asarray(training)], dict[str, float](), dict[str, float]()
        for name in sorted({*self.layout.numbers, *self.layout.standardized}):
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
        return replace(data, with_statistics_of=self.data)

    def data_as_learned(self, statistics: Mapping[str, Any]) -> Data:
        """Return the splits, prepared as for the run that saved these statistics."""
        numbers, mean, std = tuple(statistics["numbers"]), statistics["mean"], statistics["std"]
        categories = {str(name): tuple(texts) for name, texts in statistics["categories"]}
        layout = replace(self.layout, numbers=numbers, categories=categories)
        scales = {name: (float(mean[name]), float(std[name])) for name in {*numbers, *layout.standardized}}
        encoder = Encoder(layout, scales)
        whole = encoder.source(self.table)

        def source(split: str, _: object) -> InMemorySource:
            table = self.tables.get(split)
            return whole.subset(self.rows[split]) if table is None else encoder.source(table)

        extra_val = {name.partition(".")[2]: name for name in self.tables if "." in name}
        has_test = "test" in self.tables or len(self.rows["test"])
        return Data(
            **make_parts(source, train="", val="", test="" if has_test else None, extra_val=extra_val),
            input_shape=None if layout.input_shape is None else tuple(layout.input_shape),
            num_classes=None if layout.classes is None else len(layout.classes),
            class_names=layout.classes,
            reader=Reader(files=encoder.unlabelled, suffixes=_SUFFIXES, is_sample_per_file=False),
            in_target_units=encoder.in_target_units if layout.standardized & {*layout.targets} else None,
            statistics=statistics,
            with_statistics=self.data_as_learned,
            target_names=layout.targets,
            files={split: table.path for split, table in {"train": self.table, **self.tables}.items()},
        )
