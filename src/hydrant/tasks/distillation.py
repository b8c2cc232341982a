"""Classification by a student that also learns from what a teacher says of the samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome
from hydrant.errors import ConfigError
from hydrant.tasks.base import Task, are_correct
from hydrant.tasks.distances import FeatureDistance, LogitDistance


class Distillation(Task):
    """Hinton, Vinyals & Dean, "Distilling the knowledge in a neural network", 2015; the teacher is frozen.

    The loss is `(1 - share) cross_entropy + share distillation`. Both are in the graph when the task is compiled.

    Args:
        model: the student, `inputs (B, ...) -> logits (B, num_classes)`.
        teacher: the same; in evaluation mode, without gradients.
        loss: `kl` is the Kullback-Leibler divergence of the class probabilities at `temperature`, times its square
            (section 2 there); `mse` the mean squared difference of the logits (Ba & Caruana, 2014); `features` that
            of what `layers` give (Romero et al., "FitNets", 2015).
        temperature: by which logits are divided for `kl`, above 0.
        share: of the distillation loss, 0..1.
        layers: for `features`, pairs: a layer of the student by its name, that of the teacher it is to be like.
        input_shape: of one sample.
        metrics: torchmetrics by name, for evaluation, of the student's logits.
    """

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
        if temperature <= 0:
            raise ConfigError("task.temperature", f"needs a number above 0, not {temperature}")
        if not 0 <= share <= 1:
            raise ConfigError("task.share", f"needs a number from 0 to 1, not {share}")
        if layers and loss != "features":
            raise ConfigError("task.layers", f"task.loss={loss} looks at no layers; use task.loss=features")
        self.teacher = teacher.requires_grad_(False).eval()
        self.distance = (
            FeatureDistance(model, teacher, layers, input_shape)
            if loss == "features"
            else LogitDistance(temperature if loss == "kl" else None)
        )
        self._share = share

    def train(self, mode: bool = True) -> Distillation:
        """As of any module, but the teacher stays in evaluation mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, batch: Batch) -> Outcome:
        """`batch.targets` are class numbers, (B,) int64, or shares of the classes, (B, num_classes)."""
        self.distance.watch(self.model)
        return self.assess(self.model(batch.inputs), batch)

    def assess(self, outputs: Tensor, batch: Batch) -> Outcome:
        """The losses of the student's logits, (B, num_classes)."""
        logits = outputs.float()
        self.distance.watch_teacher(self.teacher)
        with torch.no_grad():
            taught = self.teacher(batch.inputs).float()
        distance = self.distance(self.model, self.teacher, logits, taught)
        losses = {
            "cross_entropy": (1 - self._share) * F.cross_entropy(logits, batch.targets),
            "distillation": self._share * distance,
        }
        measurements: dict[str, Tensor] = {}
        if self.measures:
            measurements["accuracy"] = are_correct(logits, batch.targets)
            measurements["agreement"] = are_correct(logits, taught)
        return Outcome(losses, measurements, logits.detach(), len(batch.targets))
