"""Stands for what is written for a config: how its parts are made, and its schedules."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from hydrant.commands.eject.program.data import Samples


def load_data() -> tuple[Samples, Samples]:
    """Return the training and the validation samples."""
    raise NotImplementedError


def make_model() -> nn.Module:
    """Return the model with its first weights."""
    raise NotImplementedError


def make_optimizer(model: nn.Module) -> Optimizer:
    """Return the optimizer of a model."""
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
