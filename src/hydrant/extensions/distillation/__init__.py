"""Knowledge distillation: a student learns from the targets and from a teacher."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome, Tensors, widened
from hydrant.files.plain_values import Positive, Ratio
from hydrant.tasks.base import Task
from hydrant.tasks.classification import are_correct, class_predictions, cross_entropy


class Distillation(Task):
    """Hinton, Vinyals & Dean, "Distilling the knowledge in a neural network", 2015. The teacher is frozen.

    The loss is `(1 - share) * cross_entropy + share * distillation`. Both parts are logged without their weights. A
    compiled task has both in its graph.

    Args:
        model: the student, `inputs (B, ...) -> logits (B, num_classes)`.
        teacher: the same; runs in evaluation mode without gradients.
        loss: `kl`: of the probabilities; `mse`: of the logits. The Kullback-Leibler divergence is that of the class
            probabilities at `temperature`, times `temperature ** 2` (section 2 of the paper). The mean squared
            difference is that of Ba & Caruana, 2014.
        temperature: divisor of the logits for `kl`, above 0.
        share: weight of the distillation loss, 0..1.
        metrics: torchmetrics by name, for evaluation. They get the student's logits.
    """

    best_metric: ClassVar[str] = "val/accuracy"

    def __init__(
        self,
        model: nn.Module,
        *,
        teacher: nn.Module,
        loss: Literal["kl", "mse"],
        temperature: Positive,
        share: Ratio,
        metrics: Mapping[str, nn.Module],
    ) -> None:
        super().__init__(model, metrics)
        self.teacher = teacher.requires_grad_(False).eval()
        self._loss, self._temperature, self._share = loss, temperature, share

    def train(self, mode: bool = True) -> Distillation:
        """Set the training mode, but keep the teacher in evaluation mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    def assess(self, outputs: Tensor, batch: Batch) -> Outcome:
        """Return the losses of the student's logits, (B, num_classes).

        `batch.targets` are class indices, (B,) int64, or class probabilities, (B, num_classes).
        """
        logits = widened(outputs)
        with torch.no_grad():
            teacher_logits = widened(self.teacher(batch.inputs))
        if self._loss == "mse":
            distance = F.mse_loss(logits, teacher_logits)
        else:
            log_q, log_p = ((x / self._temperature).log_softmax(dim=1) for x in (logits, teacher_logits))
            distance = F.kl_div(log_q, log_p, reduction="batchmean", log_target=True) * self._temperature**2
        entropy = cross_entropy(logits, batch.targets, None, 0.0, None)
        losses = {"weighted": (1 - self._share) * entropy + self._share * distance}
        measurements = {"cross_entropy": entropy.detach(), "distillation": distance.detach()}
        if self.measures:
            measurements["accuracy"] = are_correct(logits, batch.targets)
            measurements["agreement"] = are_correct(logits, teacher_logits)
        return Outcome(losses, measurements, logits.detach(), len(batch.targets))

    def predict(self, inputs: Tensors) -> dict[str, Tensor]:
        """Return the classes that the student predicts."""
        return class_predictions(widened(self.model(inputs)))
