"""Classification of a sample into one of several classes."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import nn

from hydrant.batch import Batch, Outcome
from hydrant.errors import ConfigError


class Classification(nn.Module):
    """Cross entropy with label smoothing (Szegedy et al., 2016, section 7) and top-1 accuracy.

    Args:
        model: `inputs (B, ...) -> logits (B, num_classes)`.
        label_smoothing: share of the target's weight spread evenly over all classes, 0..1.
        metrics: torchmetrics by name, for evaluation.
    """

    def __init__(self, model: nn.Module, *, label_smoothing: float, metrics: Mapping[str, nn.Module]) -> None:
        super().__init__()
        if not 0 <= label_smoothing <= 1:
            raise ConfigError("task.label_smoothing", f"needs a number from 0 to 1, not {label_smoothing}")
        self.model = model
        self.metrics = nn.ModuleDict(metrics)
        self._label_smoothing = label_smoothing

    def forward(self, batch: Batch) -> Outcome:
        """`batch.targets` (B,) are class numbers, int64."""
        logits = self.model(batch.inputs)
        loss = F.cross_entropy(logits, batch.targets, label_smoothing=self._label_smoothing)
        predictions = logits.detach()
        accuracy = (predictions.argmax(dim=1) == batch.targets).float().mean()
        return Outcome({"cross_entropy": loss}, {"accuracy": accuracy}, predictions, len(batch.targets))
