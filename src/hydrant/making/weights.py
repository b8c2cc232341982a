"""A model of a config with the weights of a run."""

from __future__ import annotations

import torch
from torch import nn

from hydrant import checkpoint
from hydrant.errors import CheckpointError, ConfigError


def with_weights(model: nn.Module, *, path: str | None) -> nn.Module:
    """The model with the weights of a run or checkpoint folder; with None as it is.

    Raises:
        ConfigError: there is no such run, or its weights are another model's.
    """
    if path is None:
        return model
    try:
        found = checkpoint.find(path)
    except CheckpointError as error:
        raise ConfigError("task.teacher.path", str(error)) from error
    difference = checkpoint.misfit(found, model)
    if difference:
        told = f"the weights in {found} are another model's: {difference}; choose that model"
        raise ConfigError("task.teacher.model", told)
    model.load_state_dict(checkpoint.load_part(found, "model", torch.device("cpu")))
    return model
