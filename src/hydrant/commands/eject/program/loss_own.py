"""Loss and metrics of a task of the user."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hydrant.commands.eject.program.parts import make_task
from hydrant.commands.eject.program.settings import *


class Batch(NamedTuple):
    """Samples on the device."""

    inputs: Any
    targets: Any


class Outcome(NamedTuple):
    """What a task returns for a batch: the losses, whose sum is trained, and what is measured, by name."""

    losses: dict[str, Tensor]
    measurements: dict[str, Tensor]
    predictions: Any
    num_targets: int


class Task(nn.Module):
    """A model with its losses."""

    measures = True

    def __init__(self, model: nn.Module, metrics: Mapping[str, nn.Module] | None = None) -> None:
        super().__init__()
        self.model = model
        self.metrics = nn.ModuleDict(metrics or {})


@functools.cache
def task_of(model: nn.Module) -> Task:
    """Return the task of a model."""
    return make_task()


def outcome_of(model: nn.Module, inputs: Any, targets: Any) -> Outcome:
    """Return what the task gives for a batch."""
    task = task_of(model)
    task.training = model.training
    return task(Batch(inputs, targets))


def loss_and_metrics(outcome: Outcome, targets: Any) -> tuple[Tensor, Tensor]:
    """Return the loss of a batch, shape (), and its METRICS, float64; of bools the part that is true."""
    loss = functools.reduce(operator.add, outcome.losses.values())
    if HAS_LOSSES:
        values = [loss, *outcome.losses.values(), *outcome.measurements.values()]
    else:
        values = [loss, *outcome.measurements.values()]
    return loss, torch.stack([value.detach().double().mean() for value in values])
