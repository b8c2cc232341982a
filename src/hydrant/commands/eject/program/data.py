"""The order of the samples, and batches of those that stay on the device."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from hydrant.commands.eject.program.data_samples import normalize
from hydrant.commands.eject.program.parts import augment
from hydrant.commands.eject.program.settings import *
from hydrant.seeding import ORDER, hash_of


@functools.lru_cache(maxsize=2)  # an update may have samples of two epochs
def shuffled(epoch: int) -> Tensor:
    """Return the indices of all training samples in the order of an epoch."""
    generator = torch.Generator().manual_seed(hash_of(SEED, ORDER, epoch))
    if AUGMENTS:  # plus a number for each epoch, so that each use of a sample has its own
        return (torch.randperm(NUM_SAMPLES, generator=generator) + epoch * NUM_SAMPLES).to(DEVICE)
    return torch.randperm(NUM_SAMPLES, generator=generator).to(DEVICE)


def samples_of(update: int) -> Tensor:
    """Return the indices of the samples of an update: BATCH_SIZE of them, from one epoch after the other."""
    epoch, start = divmod(update * BATCH_SIZE, NUM_SAMPLES)
    last_epoch = (update * BATCH_SIZE + BATCH_SIZE - 1) // NUM_SAMPLES
    orders = [shuffled(each) for each in range(epoch, last_epoch + 1)]
    return torch.cat(orders)[start : start + BATCH_SIZE]


def prepared(inputs: Tensor, uses: Tensor) -> Tensor:
    """Return the inputs of training samples, changed at random and normalized."""
    if AUGMENTS:
        return normalize(augment(inputs[uses % NUM_SAMPLES], uses, SEED))
    return normalize(inputs[uses])
