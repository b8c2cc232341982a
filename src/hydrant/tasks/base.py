"""What the loop asks of a task."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from hydrant.batch import Batch, Outcome


class Task(Protocol):
    """An `nn.Module` that holds a model and its losses. It is what is compiled and spread over ranks.

    `model` is what checkpoints and exports hold; `metrics` are torchmetrics updated with
    `(predictions, targets)` in evaluation, for what no mean over batches can give (F1, AUROC ...).
    """

    model: nn.Module
    metrics: nn.ModuleDict

    def forward(self, batch: Batch) -> Outcome: ...
