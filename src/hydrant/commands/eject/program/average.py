"""Average of the weights."""

from __future__ import annotations

import copy

import torch
from torch import nn

from hydrant.commands.eject.program.settings import *


def decay(num_updates: int) -> float:
    """Return the weight of the old average in an update. It rises at first, so that a short run is averaged."""
    count = num_updates - EMA_START - 1 if STARTS_LATER else num_updates - 1
    if count <= 0:
        return 0.0
    if EMA_WARMS_UP:
        rising = 1 - (1 + count / EMA_WARMUP_GAMMA) ** -EMA_WARMUP_POWER
        return max(min(rising, EMA_DECAY), MIN_EMA_DECAY)
    return EMA_DECAY


class Average:
    """A second model, whose weights are an average of those that the trained model has had."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def update(self, model: nn.Module, num_updates: int) -> None:
        """Add the weights that the model has after so many updates."""
        if IS_TAIL:
            # how many weights are averaged, the latest among them
            count, rest = divmod(num_updates - TAIL_START, TAIL_EVERY)
            if count > 0 and rest:
                return
            weight = 1.0 / max(count, 1)  # until the tail begins, the average equals the model
        else:
            weight = 1.0 - decay(num_updates)
        for average, value in zip(self.model.parameters(), model.parameters(), strict=True):
            average.lerp_(value, weight)
        if HAS_BUFFERS:
            for average, value in zip(self.model.buffers(), model.buffers(), strict=True):
                if value.is_floating_point() and not EXCLUDES_BUFFERS:
                    average.lerp_(value, weight)
                else:
                    average.copy_(value)
