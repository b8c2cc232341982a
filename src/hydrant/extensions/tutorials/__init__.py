"""Models and a task of PyTorch's tutorials and notes."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome, Tensors, widened
from hydrant.files.plain_values import PositiveInt
from hydrant.tasks.base import Task
from hydrant.tasks.classification import are_correct, class_predictions, cross_entropy


class DeepLinear(nn.Module):
    """Linear layers without biases and activations, as wide as a flattened sample; the last one returns logits.

    Args:
        input_shape: shape of one sample, e.g. (1, 8, 8).
        num_classes: size of the output.
        num_layers: number of layers, 1 or more.
    """

    def __init__(self, *, input_shape: Sequence[int], num_classes: int, num_layers: PositiveInt) -> None:
        super().__init__()
        widths = [math.prod(input_shape)] * num_layers + [num_classes]
        self.layers = nn.Sequential(
            *(nn.Linear(fan_in, fan_out, bias=False) for fan_in, fan_out in pairwise(widths))
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """`inputs` (B, *input_shape) -> logits (B, num_classes)."""
        return self.layers(inputs.flatten(1))


class AllReduceNet(nn.Module):
    """Two convolutions and three linear layers; a sum over the samples of all ranks shifts the features in between.

    The sum has no gradient, so torch.compile computes the same as eager, in one graph.

    Args:
        input_shape: (C, H, W) of one image; H and W are 16 pixels or more.
        num_classes: size of the output.
        shift: factor of the sum before it is added to the features.
    """

    def __init__(self, *, input_shape: Sequence[int], num_classes: int, shift: float) -> None:
        super().__init__()
        self.shift = shift
        self.features = nn.Sequential(
            nn.Conv2d(input_shape[0], 6, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        height, width = (((size - 4) // 2 - 4) // 2 for size in input_shape[1:])
        self.hidden = nn.Linear(16 * height * width, 120)
        self.classifier = nn.Sequential(nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, num_classes))

    def forward(self, inputs: Tensor) -> Tensor:
        """`inputs` (B, C, H, W) -> logits (B, num_classes)."""
        hidden = self.hidden(self.features(inputs))
        with torch.no_grad():
            total = hidden.sum(0)
            dist.all_reduce(total)
        return self.classifier(hidden + self.shift * total)


class TwoModels(Task):
    """The example of "Working with multiple models, losses, and optimizers" in PyTorch's notes on automatic mixed
    precision: `loss0 = f(2 o0 + 3 o1)`, `loss1 = f(3 o0 - 5 o1)`, where `f` is the cross entropy.

    Args:
        model: `first` and `second`, each `inputs (B, ...) -> logits (B, num_classes)`.
        metrics: torchmetrics by name, for evaluation. They get `2 o0 + 3 o1`.
    """

    best_metric: ClassVar[str] = "val/accuracy"

    def __init__(self, model: nn.ModuleDict, *, metrics: Mapping[str, nn.Module]) -> None:
        super().__init__(model, metrics)

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
