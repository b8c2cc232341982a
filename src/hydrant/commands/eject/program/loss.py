"""Losses and metrics of classes, of several labels, and of numbers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hydrant.commands.eject.program.settings import *


def loss_and_metrics(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of a batch, shape (), and its METRICS, float64."""
    logits = outputs.float()
    if CLASS_WEIGHTS is not None:
        weights = torch.tensor(CLASS_WEIGHTS, device=DEVICE)
        loss = F.cross_entropy(
            logits, targets, weights, reduction="none", label_smoothing=LABEL_SMOOTHING if SMOOTHS else 0.0
        ).mean()
    else:
        loss = F.cross_entropy(logits, targets, label_smoothing=LABEL_SMOOTHING if SMOOTHS else 0.0)
    if MIXES:
        targets = targets.argmax(dim=1) if targets.is_floating_point() else targets
    accuracy = (logits.argmax(dim=1) == targets).double().mean()
    return loss, torch.stack([loss.detach().double(), accuracy])


def loss_and_metrics_of_labels(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of a batch, shape (), and its METRICS, float64. Each label of a sample is a target, 0 or 1."""
    logits, labels = outputs.float(), targets.float()
    if SMOOTHS:
        labels = labels * (1 - LABEL_SMOOTHING) + LABEL_SMOOTHING / 2
    shape = -1, *[1] * (logits.ndim - 2)
    weights = torch.tensor(CLASS_WEIGHTS, device=DEVICE).view(shape) if CLASS_WEIGHTS is not None else None
    loss = F.binary_cross_entropy_with_logits(logits, labels, pos_weight=weights, reduction="none").mean()
    is_right = (logits > 0) == (targets > 0.5)
    accuracy, exact_match = is_right.double().mean(), is_right.flatten(1).all(dim=1).double().mean()
    return loss, torch.stack([loss.detach().double(), accuracy, exact_match])


def loss_and_metrics_of_numbers(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss of a batch, shape (), and its METRICS, float64."""
    if SQUEEZES:
        outputs, targets = outputs.float().squeeze(-1), targets.float()
    else:
        outputs, targets = outputs.float(), targets.float()
    if LOSS == "huber":
        loss = F.huber_loss(outputs, targets, delta=DELTA)
    elif LOSS == "mae":
        loss = F.l1_loss(outputs, targets)
    else:
        loss = F.mse_loss(outputs, targets)
    errors = (outputs - targets).detach()
    return loss, torch.stack([loss.detach(), errors.square().mean(), errors.abs().mean()]).double()
