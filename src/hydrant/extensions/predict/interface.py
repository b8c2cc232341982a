"""The predictions of a run, in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from hydrant.extensions.predict.prediction import Inputs, Prediction, Table, find_inputs, of_tensors
from hydrant.files.plain_values import PositiveInt, check_value
from hydrant.interface.arguments import data_frame
from hydrant.runs.load import SavedRun
from hydrant.training.splits import NUMBERS, Arrays

if TYPE_CHECKING:
    import pandas as pd


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
    """Return the predictions of a saved run; `Run.predict` explains the arguments.

    Raises:
        ConfigError: the data of the run cannot read the inputs.
        DataError: a file is damaged, or all are.
    """
    check_value("batch_size", PositiveInt | None, batch_size)
    samples = _inputs(saved, inputs)
    if samples.has_targets:
        saved.check_classes()
    size = batch_size or saved.plan.config["eval_batch_size"]
    batches = list(Prediction(saved, samples, size, probabilities).batches())
    arrays: Arrays = {name: np.concatenate([part[name] for part in batches]) for name in batches[0]}
    numbers = arrays.pop(NUMBERS)
    names = [samples.name_of(n) for n in numbers.tolist()]
    table_of = partial(Table.of, samples, data=saved.plan.data, probabilities=probabilities)
    return Predictions(arrays, names, numbers, table_of)


def _inputs(saved: SavedRun, inputs: Any) -> Inputs:
    if isinstance(inputs, str | Path):
        return find_inputs(saved.plan, [str(inputs)])
    if isinstance(inputs, Sequence) and inputs and all(isinstance(part, str | Path) for part in inputs):
        return find_inputs(saved.plan, [str(part) for part in cast("Sequence[Any]", inputs)])
    return of_tensors(saved.plan, _as_tensors(inputs))


def _as_tensors(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        parts = cast("Mapping[str, Any]", inputs)
        return {name: _as_tensors(part) for name, part in parts.items()}
    return torch.from_numpy(inputs) if isinstance(inputs, np.ndarray) else inputs
