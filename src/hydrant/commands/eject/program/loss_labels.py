"""Loss and metrics of several labels for a sample."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hydrant.commands.eject.program.settings import CLASS_WEIGHTS, DEVICE, LABEL_SMOOTHING, SMOOTHS


def loss_and_metrics(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of a batch, shape (), and its METRICS, float64. Each label of a sample is a target, 0 or 1."""
    logits, labels = outputs.float(), targets.float()
    if SMOOTHS:
        labels = labels * (1 - LABEL_SMOOTHING) + LABEL_SMOOTHING / 2
    if CLASS_WEIGHTS is not None:
        weights = torch.tensor(CLASS_WEIGHTS, device=DEVICE).view(-1, *[1] * (logits.ndim - 2))
        loss = F.binary_cross_entropy_with_logits(logits, labels, pos_weight=weights, reduction="none").mean()
    else:
        loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="none").mean()
    is_right = (logits > 0) == (targets > 0.5)
    accuracy, exact_match = is_right.double().mean(), is_right.flatten(1).all(dim=1).double().mean()
    return loss, torch.stack([loss.detach().double(), accuracy, exact_match])
