"""A model, data and a task of a user, passed as objects."""

import torch
from torch import nn

from hydrant.batch import Batch, Outcome
from hydrant.data import Data, InMemorySource
from hydrant.tasks import Classification


class OwnModel(nn.Module):
    """Two layers with dropout, so that a resume must restore the random numbers too."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.Dropout(0.5), nn.Linear(width, 2))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)


class OwnTask(Classification):
    """Classification whose loss is doubled, shape (1,)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model, label_smoothing=0.0, metrics={})

    def forward(self, batch: Batch) -> Outcome:
        outcome = super().forward(batch)
        return outcome._replace(losses={name: 2 * loss[None] for name, loss in outcome.losses.items()})


def own_model() -> OwnModel:
    torch.manual_seed(3)
    return OwnModel()


def own_data() -> Data:
    """Points in four dimensions, of two classes that a plane separates."""
    points = torch.randn(96, 4, generator=torch.Generator().manual_seed(0))
    classes = (points.sum(dim=1) > 0).long()
    train, val = (InMemorySource(points[part], classes[part]) for part in (slice(64), slice(64, 96)))
    return Data(train, val, (4,), 2)
