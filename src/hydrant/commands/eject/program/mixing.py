"""Mixing of samples and their targets."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from hydrant.commands.eject.program.randomness import MIXING
from hydrant.commands.eject.program.settings import LOADS, SEED
from hydrant.seeding import mix


def mix_samples(
    mixup: Any, inputs: Tensor, targets: Tensor, update: int, micro_step: int
) -> tuple[Tensor, Tensor]:
    """Return each sample mixed with another one; the targets become the probabilities of classes."""
    np.random.seed(mix(MIXING, SEED, update, micro_step) & 0xFFFFFFFF)  # timm draws from NumPy
    if LOADS:
        inputs = inputs.clone()  # timm changes them, and an update may be made again
    mixed = mixup(inputs, targets)
    return mixed[0], mixed[1].float()
