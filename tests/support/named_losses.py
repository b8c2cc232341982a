"""A model with two heads on one trunk, its losses by name, and a metric of the samples of one rank."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from hydrant.batch import Batch, Outcome
from hydrant.tasks import Task


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.a, self.b = nn.Linear(64, 16), nn.Linear(16, 10), nn.Linear(16, 10)


class NamedLosses(Task):
    def __init__(self, model: nn.Module, names: Any, metrics: Any = None) -> None:
        super().__init__(model, metrics)
        self._names = names

    def forward(self, batch: Batch) -> Outcome:
        hidden = self.model.trunk(batch.inputs.flatten(1)).relu()
        outputs = self.model.a(hidden), self.model.b(hidden)
        losses = [F.cross_entropy(output, batch.targets) for output in outputs]
        return Outcome(dict(zip(self._names, losses, strict=True)), {}, outputs[0], len(hidden))


class OwnAccuracy(nn.Module):
    def reset(self) -> None:
        self.hits, self.count = 0.0, 0

    def update(self, predictions: Tensor, targets: Tensor) -> None:
        self.hits += float((predictions.argmax(1) == targets).sum())
        self.count += len(targets)

    def compute(self) -> float:
        return self.hits / self.count
