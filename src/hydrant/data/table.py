"""A table in CSV files: numbers and categories as inputs; numbers or classes as targets."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np

from hydrant.data.base import Data, Indices, Reader
from hydrant.data.csv_file import Table, read_table
from hydrant.data.csv_layout import Layout, read_layout
from hydrant.data.parts import cut_rows
from hydrant.data.table_encoder import Encoder, Statistics
from hydrant.errors import ConfigError, DataError, typed_line

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
