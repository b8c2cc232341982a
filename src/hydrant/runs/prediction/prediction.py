"""The predictions of a saved run for samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hydrant.runs.load import SavedRun
from hydrant.runs.prediction.inputs import Inputs
from hydrant.runs.prediction.table import PREDICTION, Table
from hydrant.training.prediction import TARGET, Arrays, predict


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
        plan, source = self.saved.plan, self.inputs.source
        with self.saved.on_device() as task:
            for arrays in predict(task, source, plan.spec, self.batch_size, plan.precision):
                if not self.inputs.has_targets:
                    arrays.pop(TARGET, None)
                yield self._in_target_units(arrays)

    def table(self, arrays: Arrays) -> Table:
        """Return the table for arrays like these."""
        return Table.of(self.inputs, arrays, self.saved.plan.data, probabilities=self.probabilities)

    def _in_target_units(self, arrays: Arrays) -> Arrays:
        convert = self.saved.plan.data.in_target_units
        names = [name for name in (PREDICTION, TARGET) if name in arrays and convert is not None]
        return arrays | {name: convert(torch.from_numpy(arrays[name])).numpy() for name in names if convert}
