"""Classification into one of several classes."""

from __future__ import annotations

from collections.abc import Mapping

import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome
from hydrant.errors import ConfigError
from hydrant.tasks.base import Task, are_correct


class Classification(Task):
    """Cross entropy with label smoothing (Szegedy et al., 2016, section 7) and top-1 accuracy.

    Args:
        model: `inputs (B, ...) -> logits (B, num_classes)`.
        label_smoothing: part of the target probability that is spread evenly over all classes, 0..1.
        metrics: torchmetrics by name, for evaluation.
    """

    def __init__(self, model: nn.Module, *, label_smoothing: float, metrics: Mapping[str, nn.Module]) -> None:
        super().__init__(model, metrics)
        if isinstance(model, nn.ModuleDict):
            message = f"takes one model, but this one holds {', '.join(model)}; choose another task"
            raise ConfigError("task", message)
        if not 0 <= label_smoothing <= 1:
            raise ConfigError("task.label_smoothing", f"needs a number from 0 to 1, not {label_smoothing}")
        self._label_smoothing = label_smoothing

    def forward(self, batch: Batch) -> Outcome:
        """`batch.targets` are class indices, (B,) int64, or class probabilities, (B, num_classes)."""
        return self.assess(self.model(batch.inputs), batch)

    def assess(self, outputs: Tensor, batch: Batch) -> Outcome:
        """Return the loss of the model's logits, (B, num_classes)."""
        logits = outputs.float()
        loss = F.cross_entropy(logits, batch.targets, label_smoothing=self._label_smoothing)
        measurements = {"accuracy": are_correct(logits, batch.targets)} if self.measures else {}
        return Outcome({"cross_entropy": loss}, measurements, logits.detach(), batch.targets.shape[0])
