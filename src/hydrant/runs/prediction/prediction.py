"""The predictions of a saved run for samples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from hydrant.runs.load import SavedRun
from hydrant.runs.prediction.inputs import Inputs
from hydrant.runs.prediction.table import PREDICTION, Table
from hydrant.training.prediction import TARGET, Arrays, predict

_CONFIG_KEYS = ("data", "model", "task", "precision", "seed")
_CHANGEABLE = ("num_workers", "on_error")
"""Keys of the data that may change before a command continues: the predictions stay the same."""


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

    def batches(self, first: int = 0) -> Iterator[Arrays]:
        """Yield the arrays of each batch, computed on the device of the run. `first` is the first sample of a batch."""
        plan, source = self.saved.plan, self.inputs.source
        with self.saved.on_device() as task:
            for arrays in predict(task, source, plan.spec, self.batch_size, plan.precision, first=first):
                if not self.inputs.has_targets:
                    arrays.pop(TARGET, None)
                yield self._in_target_units(arrays)

    def table(self, arrays: Arrays) -> Table:
        """Return the table for arrays like these."""
        return Table.of(self.inputs, arrays, self.saved.plan.data, probabilities=self.probabilities)

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that determines the predictions, by its name in messages."""
        saved, config = self.saved, self.saved.plan.config
        data = {key: value for key, value in config["data"].items() if key not in _CHANGEABLE}
        times = [file.stat().st_mtime_ns for file in sorted(saved.checkpoint.iterdir())]
        return {
            "weights": _digest([str(saved.checkpoint), saved.weights, times]),
            "config": _digest({**{key: config[key] for key in _CONFIG_KEYS}, "data": data}),
            "inputs": _digest(self.inputs.identity),
            "batch size": self.batch_size,
        }

    def _in_target_units(self, arrays: Arrays) -> Arrays:
        convert = self.saved.plan.data.in_target_units
        names = [name for name in (PREDICTION, TARGET) if name in arrays and convert is not None]
        return arrays | {name: convert(torch.from_numpy(arrays[name])).numpy() for name in names if convert}


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
