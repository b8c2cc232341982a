"""Loss and metrics of numbers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from hydrant.commands.eject.program.settings import DELTA, LOSS, SQUEEZES


def loss_and_metrics(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
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


def r2_sums(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the sums over a batch of which `r2` is a function: (4,), or (4, K) for K targets of a sample."""
    if SQUEEZES:
        x, y = outputs.squeeze(-1).double(), targets.double()
    else:
        x, y = outputs.double(), targets.double()
    return torch.stack([part.sum(dim=0) for part in (torch.ones_like(y), y, y.square(), (y - x).square())])


def r2(sums: Tensor) -> dict[str, float]:
    """Return the coefficient of determination: 1 is perfect, 0 as good as the mean of the targets."""
    count, total, squares, errors = sums
    spread = squares - total.square() / count
    is_spread = spread > 1e-12 * squares  # less is rounding: all targets are equal
    return {"r2": torch.where(is_spread, 1 - errors / spread, (errors == 0).double()).mean().item()}
