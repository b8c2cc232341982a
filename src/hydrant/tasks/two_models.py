"""Two models with two losses of both outputs, so that both losses share one autograd graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from hydrant.batch import Batch, Outcome, Tensors, widened
from hydrant.errors import ConfigError
from hydrant.tasks.base import Task, are_correct
from hydrant.tasks.entropy import cross_entropy
from hydrant.tasks.predictions import class_predictions


class TwoModels(Task):
    """The example of "Working with multiple models, losses, and optimizers" in PyTorch's notes on automatic mixed
    precision: `loss0 = f(2 o0 + 3 o1)`, `loss1 = f(3 o0 - 5 o1)`, where `f` is the cross entropy.

    Args:
        model: `first` and `second`, each `inputs (B, ...) -> logits (B, num_classes)`.
        metrics: torchmetrics by name, for evaluation. They get `2 o0 + 3 o1`.

    Raises:
        ConfigError: `model` lacks one of the two.
    """

    best_metric: ClassVar[str] = "val/accuracy"

    def __init__(self, model: nn.ModuleDict, *, metrics: Mapping[str, nn.Module]) -> None:
        super().__init__(model, metrics)
        missing = {"first", "second"} - {name for name, _ in model.named_children()}
        if missing:
            message = f"this task needs a {' and a '.join(sorted(missing))} model; use model=two"
            raise ConfigError("model", message)

    def forward(self, batch: Batch) -> Outcome:
        """`batch.targets` are class indices, (B,) int64, or class probabilities, (B, num_classes)."""
        models: Any = self.model  # the trained or the averaged models
        first, second = models["first"](batch.inputs), models["second"](batch.inputs)
        logits = widened(2 * first + 3 * second)
        losses = {
            "loss0": cross_entropy(logits, batch.targets, None, 0.0, None),
            "loss1": cross_entropy(widened(3 * first - 5 * second), batch.targets, None, 0.0, None),
        }
        measurements = {"accuracy": are_correct(logits, batch.targets)} if self.measures else {}
        return Outcome(losses, measurements, logits.detach(), len(batch.targets))

    def predict(self, inputs: Tensors) -> dict[str, Tensor]:
        """Return the classes by `2 o0 + 3 o1`."""
        models: Any = self.model
        return class_predictions(widened(2 * models["first"](inputs) + 3 * models["second"](inputs)))
