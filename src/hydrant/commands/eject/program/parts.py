"""Stands for what is written for a config: how its parts are made, and its schedules."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hydrant.commands.eject.program.data_samples import Samples

TrainingSamples = Any
ValidationSamples = Any
"""The types of what `load_data` returns."""


def load_data() -> tuple[Any, Any]:
    """Return the training and the validation samples."""
    raise NotImplementedError


def load_test() -> Any:
    """Return the test samples."""
    raise NotImplementedError


def samples_of(update: int) -> Tensor:
    """Return the indices of the samples of an update."""
    raise NotImplementedError


def read_batch(samples: Any, chosen: Tensor) -> Samples:
    """Return the chosen samples."""
    raise NotImplementedError


def to_device(inputs: Any, targets: Tensor) -> tuple[Any, Tensor]:
    """Return a batch on the device."""
    raise NotImplementedError


def forward() -> Tensor:
    """Stands for what the model returns for a batch."""
    raise NotImplementedError


def loss_and_metrics(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of a batch, shape (), and its METRICS, float64."""
    raise NotImplementedError


def num_targets() -> int:
    """Stands for the number of targets of a batch, by which its metrics are weighted."""
    raise NotImplementedError


def sums_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return sums over a batch, of whose totals `values_of` makes metrics."""
    raise NotImplementedError


def values_of(sums: Tensor) -> dict[str, float]:
    """Return the metrics that are functions of sums over all samples."""
    raise NotImplementedError


def make_data() -> Any:
    """Return what the user's data set is."""
    raise NotImplementedError


def make_test() -> Any:
    """Return what the user's test set is."""
    raise NotImplementedError


def make_task() -> Any:
    """Return the user's task with its model."""
    raise NotImplementedError


def make_metrics() -> dict[str, Any]:
    """Return metrics of evaluations by name."""
    raise NotImplementedError


def predictions() -> Any:
    """Stands for what metrics get of a batch."""
    raise NotImplementedError


def make_model() -> nn.Module:
    """Return the model with its first weights."""
    raise NotImplementedError


def make_optimizer(model: nn.Module) -> Any:
    """Return the optimizer of a model."""
    raise NotImplementedError


def wrap_for_ranks(model: nn.Module) -> nn.Module:
    """Return the model whose gradients are averaged over the ranks."""
    raise NotImplementedError


def make_mixup() -> Any:
    """Return timm's mixup."""
    raise NotImplementedError


def learning_rate(update: int) -> float:
    """Return the learning rate of an update."""
    raise NotImplementedError


def set_schedules(optimizer: Optimizer, update: int) -> dict[str, float]:
    """Set the scheduled fields of an optimizer for an update, and return their values by name."""
    raise NotImplementedError


plateau: Any = None
"""torch's ReduceLROnPlateau, for a schedule that depends on a metric."""
