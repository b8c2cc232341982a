"""Check, before anything starts, that a checkpoint can hold what a run saves: it is written and read back in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from hydrant.errors import ConfigError, first_line
from hydrant.training.checkpoint.content import Checkpoint, Snapshot
from hydrant.training.hooks import Hooks

_MAX_SIDE = 2
"""The largest size of a dimension in the tensors that are tried."""


def check_saving(task: nn.Module, hooks: Hooks) -> None:
    """Write a part of each tensor of the task as a checkpoint does, and read it back into its place.

    Raises:
        ConfigError: a tensor, or the state of a hook, cannot be written or read.
    """
    values = {n: v for n, v in task.state_dict().items() if not (isinstance(v, Tensor) and v.is_meta)}
    try:
        _try_values(values)
    except Exception as error:  # a kind of tensor fails by anything
        for name, value in values.items():
            _try_alone(name, value)
        raise ConfigError("model", f"it cannot be saved and read again: {first_line(error)}") from error
    try:
        Snapshot.of(Checkpoint({}, {"hooks": hooks.state_dict()}), is_rank_zero=True)
    except Exception as error:  # a user's hook returns anything
        raise ConfigError("hooks", f"their state cannot be saved: {first_line(error)}") from error


@torch.no_grad()
def _try_values(values: Mapping[str, Any]) -> None:
    parts = {name: _part(value) for name, value in values.items()}
    written = save(Snapshot.of(Checkpoint(parts, {}), is_rank_zero=True).parts["model"])
    for name, value in load(written).items():
        parts[name].copy_(value)  # the values that it has


def _part(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach()[tuple(slice(_MAX_SIDE) for _ in value.shape)]


def _try_alone(name: str, value: Any) -> None:
    """Raise the ConfigError about a value that cannot be saved."""
    try:
        _try_values({name: value})
    except Exception as error:
        key = "model" if name.startswith("model.") else "task"
        short = name.removeprefix("model.")
        message = f"{short} cannot be saved and read again: {first_line(error) or type(error).__name__}"
        remedy = "make it a contiguous tensor with a memory of its own, or a buffer with persistent=False if training"
        remedy = f"{remedy} does not change it"
        raise ConfigError(key, message, remedy=remedy) from error
