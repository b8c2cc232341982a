"""Noise with random labels."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from hydrant.commands.eject.program.data_samples import Samples
from hydrant.commands.eject.program.settings import *
from hydrant.seeding import SYNTHETIC, uniform

Numbers = Tensor  # of samples
NUM_OFFSETS = 1 << 16  # how many different images there are


def load_synthetic() -> tuple[Numbers, Numbers]:
    """Return the numbers of the samples to train on and to evaluate on."""
    numbers = torch.arange(VAL_START + NUM_VAL_SAMPLES, device=DEVICE)
    return numbers[:NUM_SAMPLES], numbers[VAL_START:]


@functools.cache
def windows() -> Tensor:
    """Return all images, (NUM_OFFSETS, C * H * W): windows into one block of noise."""
    size = math.prod(INPUT_SHAPE)
    generator = torch.Generator().manual_seed(SYNTHETIC)
    return torch.randn(size + NUM_OFFSETS - 1, generator=generator).to(DEVICE).unfold(0, size, 1)


def make_samples(numbers: Numbers, chosen: Tensor) -> Samples:
    """Return the chosen samples: which image and which class they have are hashes of their numbers."""
    numbers = numbers[chosen]
    rows = (uniform(SYNTHETIC, numbers, 0) * NUM_OFFSETS).long()
    targets = (uniform(SYNTHETIC, numbers, 1) * NUM_CLASSES).long()
    return windows()[rows].view(-1, *INPUT_SHAPE), targets
