"""Loss and metrics of classes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hydrant.commands.eject.program.settings import CLASS_WEIGHTS, DEVICE, LABEL_SMOOTHING, MIXES, SMOOTHS


def loss_and_metrics(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of a batch, shape (), and its METRICS, float64."""
    logits = outputs.float()
    if CLASS_WEIGHTS is not None:
        weights = torch.tensor(CLASS_WEIGHTS, device=DEVICE)
        if SMOOTHS:
            loss = F.cross_entropy(
                logits, targets, weights, reduction="none", label_smoothing=LABEL_SMOOTHING
            ).mean()
        else:
            loss = F.cross_entropy(logits, targets, weights, reduction="none").mean()
    elif SMOOTHS:
        loss = F.cross_entropy(logits, targets, label_smoothing=LABEL_SMOOTHING)
    else:
        loss = F.cross_entropy(logits, targets)
    if MIXES:
        classes = targets.argmax(dim=1) if targets.is_floating_point() else targets
        accuracy = (logits.argmax(dim=1) == classes).double().mean()
    else:
        accuracy = (logits.argmax(dim=1) == targets).double().mean()
    return loss, torch.stack([loss.detach().double(), accuracy])
