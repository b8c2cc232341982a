"""Call a task as in training, without a trace."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from hydrant import seeding


@contextmanager
def training_trial(task: nn.Module) -> Generator[None]:
    """Put a task on the host into training mode; then restore its modes, its buffers and the random generators."""
    modules: list[Any] = list(task.modules())
    modes = [module.training for module in modules]
    # A forward pass may add a buffer, or assign a new tensor to one, so the places are kept.
    places = [(module._buffers, dict(module._buffers)) for module in modules]
    buffers, host = [(buffer, buffer.clone()) for buffer in task.buffers()], seeding.host_state()
    try:
        with torch.random.fork_rng(devices=[]):
            task.train()
            yield
    finally:
        seeding.set_host_state(host)
        for module, mode in zip(modules, modes, strict=True):
            module.training = mode
        for held, before in places:
            held.clear()
            held.update(before)
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
