"""A model of a config with the weights of a run."""

from __future__ import annotations

from torch import nn

from hydrant import checkpoint


def with_weights(model: nn.Module, *, path: str | None) -> nn.Module:
    """The model with the weights of a run or checkpoint folder; with None as it is.

    Raises:
        ConfigError: there is no such run, or its weights are another model's.
    """
    if path is None:
        return model
    checkpoint.Weights(checkpoint.find(path, "task.teacher.path")).load(model, "task.teacher.model")
    return model
