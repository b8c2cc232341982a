"""The predictions of a saved run for samples, as arrays and as rows with the names of classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hydrant.data.base import Data
from hydrant.errors import ConfigError
from hydrant.runs.load import SavedRun
from hydrant.runs.prediction.inputs import Inputs
from hydrant.training.splits import NUMBERS, TARGET, Arrays, predict

PREDICTION, PROBABILITIES, LOGITS = "prediction", "probabilities", "logits"
_HEADS = {PROBABILITIES: "probability"}  # the columns of an array (B, C) are named probability/cat


@dataclass(frozen=True)
class Table:
    """The columns of predictions.

    Args:
        columns: the names of all columns.
        parts: the names of the arrays that they show.
        name_of: returns the name of a sample by its number.
        class_names: of integers, which are classes.
    """

    columns: tuple[str, ...]
    parts: tuple[str, ...]
    name_of: Callable[[int], str | int]
    class_names: tuple[str, ...]

    @classmethod
    def of(cls, inputs: Inputs, arrays: Arrays, data: Data, *, probabilities: bool) -> Table:
        """Return the table for arrays like these.

        Args:
            inputs: name the samples.
            arrays: of a batch.
            data: names classes and targets.
            probabilities: whether to show the probability of each class; those of labels are always shown.

        Raises:
            ConfigError: an array has no place in a table.
        """
        hidden = {NUMBERS, LOGITS}
        if PREDICTION in arrays and not probabilities:
            hidden.add(PROBABILITIES)
        if arrays.get(TARGET, np.zeros(0)).ndim > 2:
            hidden.add(TARGET)
        parts = tuple(name for name in arrays if name not in hidden)
        names = data.class_names or data.target_names
        columns = [column for name in parts for column in _columns(name, arrays[name], names)]
        has_classes = PREDICTION in arrays and arrays[PREDICTION].dtype.kind in "iu"
        return cls(
            (inputs.column, *columns), parts, inputs.name_of, (data.class_names or ()) if has_classes else ()
        )

    def rows(self, arrays: Arrays) -> Iterator[list[Any]]:
        """Yield the row of each sample of a batch."""
        parts = [self._values(name, arrays[name]) for name in self.parts]
        for row, number in enumerate(arrays[NUMBERS].tolist()):
            yield [self.name_of(number), *(value for part in parts for value in part[row])]

    def _values(self, name: str, array: np.ndarray) -> list[list[Any]]:
        """Return the values of each row."""
        values = array.reshape(len(array), -1)
        if values.dtype == np.float32:  # the shortest decimals that mean this number
            return [[float(text) for text in row] for row in values.astype(str)]
        if name in (PREDICTION, TARGET) and array.ndim == 1 and values.dtype.kind in "iu":
            names = self.class_names
            return [[names[n] if 0 <= n < len(names) else n for n in row] for row in values.tolist()]
        return values.tolist()


def _columns(name: str, array: np.ndarray, names: Sequence[str]) -> list[str]:
    if array.ndim == 1 or array.shape[1:] == (1,):
        return [name]
    if array.ndim > 2:
        message = f"{name!r} of a sample has the shape {list(array.shape[1:])}, which is no row of a table"
        raise ConfigError("--out", message, remedy="give a file that ends in .npz")
    count = array.shape[1]
    entries = names if len(names) == count else range(count)
    return [f"{_HEADS.get(name, name)}/{entry}" for entry in entries]


@dataclass(frozen=True)
class Prediction:
    """The predictions of a saved run for samples.

    Args:
        saved: the run.
        inputs: the samples.
        batch_size: how many are predicted at once.
        probabilities: whether tables show the probability of each class.
    """

    saved: SavedRun
    inputs: Inputs
    batch_size: int
    probabilities: bool

    def batches(self) -> Iterator[Arrays]:
        """Yield the arrays of each batch, computed on the device of the run."""
        plan, source, convert = self.saved.plan, self.inputs.source, self.saved.plan.data.in_target_units
        with self.saved.on_device() as task:
            for arrays in predict(task, source, plan.spec, self.batch_size, plan.precision):
                if not self.inputs.has_targets:
                    arrays.pop(TARGET, None)
                if convert is not None:
                    names = arrays.keys() & {PREDICTION, TARGET}
                    arrays |= {name: convert(torch.from_numpy(arrays[name])).numpy() for name in names}
                yield arrays

    def table(self, arrays: Arrays) -> Table:
        """Return the table for arrays like these."""
        return Table.of(self.inputs, arrays, self.saved.plan.data, probabilities=self.probabilities)
