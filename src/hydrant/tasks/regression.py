"""Regression: one number or several for a sample."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome, widened
from hydrant.checks import check_number, unknown_name
from hydrant.errors import ConfigError
from hydrant.tasks.base import tensor_targets
from hydrant.tasks.losses import Loss
from hydrant.tasks.sums import MetricOfSums
from hydrant.tasks.supervised import Supervised, fitted


class Regression(Supervised):
    """Squared, absolute or Huber error of the model's outputs, with both mean errors as measurements.

    Args:
        model: `inputs (B, ...) -> outputs` in the shape of the targets; (B, 1) also fits targets (B,).
        loss: `mse`, `mae` or `huber`. The latter is squared below `delta` and linear above it (Huber, 1964). Or another
            loss.
        delta: for `huber`: errors above it count linearly. Above 0.
        metrics: torchmetrics by name, for evaluation.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Literal["mse", "mae", "huber"] | Loss,
        delta: float,
        metrics: Mapping[str, nn.Module],
    ) -> None:
        check_number("task.delta", delta, above=0)
        losses: dict[str, Loss] = {"mse": F.mse_loss, "mae": F.l1_loss, "huber": nn.HuberLoss(delta=delta)}
        if isinstance(loss, str) and loss not in losses:
            raise unknown_name("task.loss", "loss", loss, losses)
        if _takes_logarithms(loss):
            message = (
                "true makes the outputs logarithms, but task=regression measures and predicts them as numbers"
            )
            remedy = "give false and a model whose outputs are above 0, or use task=supervised"
            raise ConfigError("task.loss.log_input", message, remedy=remedy)
        super().__init__(model, loss=losses[loss] if isinstance(loss, str) else loss, metrics=metrics)

    def assess(self, outputs: Tensor, batch: Batch) -> Outcome:
        """Return the loss of the model's outputs. `batch.targets` (B, ...) are numbers.

        Raises:
            ConfigError: the outputs and the targets have different shapes.
        """
        outputs = widened(outputs)
        targets = tensor_targets(batch.targets, "regression").to(outputs.dtype)
        if fitted(outputs, targets).shape[1:] != targets.shape[1:]:
            needed = targets.shape[1] if targets.ndim == 2 else 1
            remedy = f"; give model.num_classes={needed}" if targets.ndim < 3 else ""
            found = f"gives {list(outputs.shape[1:])} for a sample, but its targets have {list(targets.shape[1:])}"
            raise ConfigError("model", f"{found}; a regression needs the same shape{remedy}")
        outcome = super().assess(outputs, Batch(batch.inputs, targets))
        return outcome._replace(num_targets=targets.numel())

    def measure(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        errors = outputs - batch.targets
        return {"mse": errors.square().mean(), "mae": errors.abs().mean()}


def _takes_logarithms(loss: object) -> bool:
    if isinstance(loss, partial) and loss.func is F.poisson_nll_loss:
        return loss.keywords.get("log_input", True)
    return isinstance(loss, nn.PoissonNLLLoss) and loss.log_input


class R2(MetricOfSums):
    """The coefficient of determination of a whole split: 1 - (squared errors) / (squared distances from the mean).

    1 is perfect, and 0 is as good as the mean of the targets. With several outputs it is the mean over them. Where all
    targets are equal, it is 1 without an error and else 0.

    >>> metric = R2()
    >>> metric.update(torch.tensor([2.5, 0.0, 2.0, 8.0]), torch.tensor([3.0, -0.5, 2.0, 7.0]))
    >>> round(float(metric.compute()), 4)
    0.9486
    """

    higher_is_better = True

    def sums(self, values: Tensor, targets: Tensor) -> Tensor:
        x, y = values.double(), targets.double()
        parts = [torch.ones_like(y), y, y.square(), (y - x).square()]
        return torch.stack([part.sum(dim=0) for part in parts])  # (4, ...)

    def value(self, sums: Tensor) -> Tensor:
        count, total, squares, errors = sums
        spread = squares - total.square() / count
        is_spread = spread > 1e-12 * squares  # less is rounding
        constant = (errors == 0).double()
        return torch.where(is_spread, 1 - errors / spread, constant).mean()
