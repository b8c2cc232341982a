"""Stands for what is written for a config: how its parts are made, and its schedules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

Samples = tuple[Tensor, Tensor]
TrainingSamples = ValidationSamples = Any
"""The types of what `load_data` returns."""

# Data.
load_data: Callable[[], tuple[Any, Any]]  # the training and the validation samples
load_test: Callable[[], Any]  # the test samples
samples_of: Callable[[int], Tensor]  # the indices of the samples of an update
read_batch: Callable[[Any, Tensor], Samples]  # the chosen ones of some samples
to_device: Callable[[Any, Tensor], tuple[Any, Tensor]]  # a batch on the device
make_data: Callable[[], Any]  # what the user's function returns
augment: Callable[[Tensor, Tensor, int], Tensor]  # changes images at random, by the numbers of their uses
make_mixup: Callable[[], Any]  # timm's mixup

# The model and the loss of a batch, which is `inputs` and `targets`.
make_model: Callable[[], nn.Module]  # with its first weights
make_task: Callable[[], Any]  # the user's task with its model
forward: Callable[[], Tensor]  # what the model returns
# The loss, shape (), and METRICS, float64.
loss_and_metrics: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
num_targets: Callable[[], int]  # by which the metrics are weighted
sums_of: Callable[[Tensor, Tensor], Tensor]  # sums over a batch, of whose totals `values_of` makes metrics
values_of: Callable[[Tensor], dict[str, float]]
make_metrics: Callable[[], dict[str, Any]]  # metrics of evaluations by name
predictions: Callable[[], Any]  # what these get

# The optimizer.
make_optimizer: Callable[[nn.Module], Any]
wrap_for_ranks: Callable[[nn.Module], nn.Module]  # the model whose gradients are averaged over the ranks
make_stepped_optimizer: Callable[[], Any]  # one that trains nothing
make_scheduler: Callable[[], Any]  # which makes steps, of that optimizer
lr_schedule: Any  # the ratio of the learning rate in an update
SCHEDULES: Sequence[tuple[str, int, Any, float, Callable[[int], float]]]
"""By field: its name in the metrics, its group, its name, what the schedule multiplies, and the schedule."""


def __getattr__(name: str) -> Any:
    """Let a module of the program be imported, which nothing runs."""
    if name not in globals()["__annotations__"]:
        raise AttributeError(name)
