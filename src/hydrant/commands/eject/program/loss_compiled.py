"""The loss as compiled code, and the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hydrant.commands.eject.program.parts import forward, loss_and_metrics
from hydrant.commands.eject.program.settings import *


@torch.compile(**COMPILE)
def compiled_loss(model: nn.Module, inputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
    """Return what `loss_and_metrics` returns for a batch; model and loss are compiled as one graph."""
    return loss_and_metrics(forward(), targets)


def compile_in_place(model: nn.Module) -> None:
    """Let the model run compiled code."""
    if COMPILES_MODEL:
        model.forward = torch.compile(model.forward, **COMPILE)
    else:
        for name in BLOCKS:
            block = model.get_submodule(name)
            block.forward = torch.compile(block.forward, **COMPILE)
