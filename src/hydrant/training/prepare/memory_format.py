"""The memory format of two-dimensional convolutions.

A convolution computes in `channels_last` if its weight has this format, and returns its result in it. So the layers
after it receive this format too, and inputs need no conversion of their own. Tensor cores read it without reordering.
"""

from typing import Literal

import torch
from torch import nn

from hydrant.errors import ConfigError
from hydrant.training.distributed.base import Parallel
from hydrant.training.precision import Precision

MemoryFormat = Literal["auto", "contiguous_format", "channels_last"]


def check_memory_format(setting: MemoryFormat, task: nn.Module, parallel: Parallel) -> None:
    """Raise ConfigError if `channels_last` is configured and nothing can have this format."""
    if setting != "channels_last":
        return
    if parallel.is_sharded:
        message = "sharded weights are contiguous; use memory_format=auto, or parallel=ddp"
        raise ConfigError("memory_format", message)
    if not _weights(task):
        message = "channels_last is for two-dimensional convolutions, and this model has none; use memory_format=auto"
        raise ConfigError("memory_format", message)


def uses_channels_last(
    setting: MemoryFormat, task: nn.Module, precision: Precision, parallel: Parallel, device: torch.device
) -> bool:
    """Return whether convolutions compute in `channels_last`: as configured, or where it is faster (`auto`)."""
    if setting != "auto":
        return setting == "channels_last"
    is_faster = device.type == "cuda" and precision.is_reduced and not parallel.is_sharded
    return is_faster and bool(_weights(task))


def convert_to_channels_last(task: nn.Module) -> None:
    """Convert the weights of the convolutions in place. Gradients and the optimizer's state get the same format."""
    for weight in _weights(task):
        weight.data = weight.data.contiguous(memory_format=torch.channels_last)


def _weights(task: nn.Module) -> list[nn.Parameter]:
    convolutions = [m for m in task.modules() if isinstance(m, nn.Conv2d | nn.ConvTranspose2d)]
    return [p for module in convolutions for p in module.parameters(recurse=False) if p.ndim == 4]
