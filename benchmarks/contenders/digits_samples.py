"""The digits as two tensors, for loops other than Hydrant's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hydrant.data import Source, StreamSpec, digits

HOST = StreamSpec(0, 64, 64, 0, 1, torch.device("cpu"))


def samples(source: Source) -> tuple[Tensor, Tensor]:
    """Return all samples, normalised: inputs (N, 1, 8, 8) and targets (N,)."""
    (batch,) = source.batches(HOST, source.num_samples)
    return batch.inputs, batch.targets


def accuracy(model: nn.Module) -> float:
    """Return the accuracy on the validation samples."""
    inputs, targets = samples(digits().val)
    with torch.no_grad():
        return (model.eval()(inputs).argmax(1) == targets).float().mean().item()
