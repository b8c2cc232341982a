"""The digits as two tensors, for loops that are not Hydrant's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hydrant.data import Source, StreamSpec, digits

HOST = StreamSpec(0, 64, 64, 0, 1, torch.device("cpu"))


def samples(source: Source) -> tuple[Tensor, Tensor]:
    """All of them, normalised: (N, 1, 8, 8) and (N,)."""
    (batch,) = source.batches(HOST, source.num_samples)
    return batch.inputs, batch.targets


def accuracy(model: nn.Module) -> float:
    """Of the samples held out."""
    inputs, targets = samples(digits().val)
    with torch.no_grad():
        return (model.eval()(inputs).argmax(1) == targets).float().mean().item()
