"""Knowledge distillation: a student learns from the targets and from a teacher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome, Tensors, widened
from hydrant.checks import check_number
from hydrant.errors import ConfigError
from hydrant.tasks.base import Task, are_correct
from hydrant.tasks.distances import FeatureDistance, LogitDistance
from hydrant.tasks.entropy import cross_entropy
from hydrant.tasks.predictions import class_predictions


class Distillation(Task):
    """Hinton, Vinyals & Dean, "Distilling the knowledge in a neural network", 2015. The teacher is frozen.

    The loss is `(1 - share) * cross_entropy + share * distillation`. Both parts are logged without their weights. A
    compiled task has both in its graph.

    Args:
        model: the student, `inputs (B, ...) -> logits (B, num_classes)`.
        teacher: the same; runs in evaluation mode without gradients.
        loss: `kl`: of the probabilities; `mse`: of the logits; `features`: mse of the outputs of `layers`. The first is
            the Kullback-Leibler divergence of the class probabilities at `temperature`, times `temperature ** 2`
            (section 2 of the paper); the others are mean squared differences (Ba & Caruana, 2014; Romero et al.,
            "FitNets", 2015).
        temperature: divisor of the logits for `kl`, above 0.
        share: weight of the distillation loss, 0..1.
        layers: for `features`: pairs of names, a layer of the student and the layer of the teacher to imitate.
        input_shape: shape of one sample.
        metrics: torchmetrics by name, for evaluation. They get the student's logits.

    Raises:
        ConfigError: an argument is out of its range, or does not fit `loss`.
    """

    best_metric: ClassVar[str] = "val/accuracy"

    def __init__(
        self,
        model: nn.Module,
        *,
        teacher: nn.Module,
        loss: Literal["kl", "mse", "features"],
        temperature: float,
        share: float,
        layers: Sequence[tuple[str, str]],
        input_shape: Sequence[int],
        metrics: Mapping[str, nn.Module],
    ) -> None:
        super().__init__(model, metrics)
        check_number("task.temperature", temperature, above=0)
        check_number("task.share", share, least=0, most=1)
        if layers and loss != "features":
            raise ConfigError(
                "task.layers", f"task.loss={loss} uses no layers", remedy="use task.loss=features"
            )
        self.teacher = teacher.requires_grad_(False).eval()
        self.distance = (
            FeatureDistance(model, teacher, layers, input_shape)
            if loss == "features"
            else LogitDistance(temperature if loss == "kl" else None)
        )
        self._share = share

    def train(self, mode: bool = True) -> Distillation:
        """Set the training mode, but keep the teacher in evaluation mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, batch: Batch) -> Outcome:
        """`batch.targets` are class indices, (B,) int64, or class probabilities, (B, num_classes)."""
        self.distance.capture_student(self.model)
        return self.assess(self.model(batch.inputs), batch)

    def assess(self, outputs: Tensor, batch: Batch) -> Outcome:
        """Return the losses of the student's logits, (B, num_classes)."""
        logits = widened(outputs)
        self.distance.capture_teacher(self.teacher)
        with torch.no_grad():
            teacher_logits = widened(self.teacher(batch.inputs))
        distance = self.distance(self.model, self.teacher, logits, teacher_logits)
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
