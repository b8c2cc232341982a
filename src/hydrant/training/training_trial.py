"""Call a task as in training, without a trace."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch
from torch import nn

from hydrant import seeding


@contextmanager
def training_trial(task: nn.Module) -> Generator[None]:
    """Put a task on the host into training mode; then restore its modes, its buffers and the random generators."""
    modes = {module: module.training for module in task.modules()}
    buffers, host = {name: buffer.clone() for name, buffer in task.named_buffers()}, seeding.host_state()
    try:
        with torch.random.fork_rng(devices=[]):
            task.train()
            yield
    finally:
        seeding.set_host_state(host)
        for module, mode in modes.items():
            module.training = mode
        with torch.no_grad():
            for name, buffer in task.named_buffers():
                buffer.copy_(buffers[name])
