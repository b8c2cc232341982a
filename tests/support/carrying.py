"""MoCo, whose queue of keys goes on from batch to batch, and the plain loop of its authors."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome
from hydrant.tasks import Task


def make_encoders(input_shape: Any, num_classes: int) -> nn.ModuleDict:
    """The encoder of queries, and that of keys with the same first weights, which no gradient changes."""
    query, key = (nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Linear(16, 8)) for _ in "qk")
    key.load_state_dict(query.state_dict())
    return nn.ModuleDict({"query": query, "key": key.requires_grad_(False)})


class Moco(Task):
    """MoCo (He et al., 2020): the other keys of a query are those of the last batches, in a queue."""

    queue: Tensor

    def __init__(self, model: nn.Module, *, metrics: Any) -> None:
        super().__init__(model, metrics)
        self.register_buffer("queue", F.normalize(torch.arange(320.0).view(40, 8).sin(), dim=1))

    def forward(self, batch: Batch) -> Outcome:
        loss, keys = contrast(self.model, batch.inputs, self.queue)
        return Outcome({"loss": loss}, {}, keys, len(keys), keys)

    def end_update(self, carried: Tensor) -> None:
        self.queue.copy_(torch.cat([carried, self.queue])[: len(self.queue)])
        follow(self.model)


def contrast(encoders: Any, images: Tensor, queue: Tensor) -> tuple[Tensor, Tensor]:
    queries = F.normalize(encoders["query"](images), dim=1)
    with torch.no_grad():
        keys = F.normalize(encoders["key"](images.flip(-1)), dim=1)
    logits = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ queue.T], dim=1) / 0.2
    return F.cross_entropy(logits, torch.zeros(len(images), dtype=torch.long)), keys


def follow(encoders: Any) -> None:
    """Move the encoder of keys towards that of queries."""
    for key, query in zip(encoders["key"].parameters(), encoders["query"].parameters(), strict=True):
        key.data.mul_(0.9).add_(query.data, alpha=0.1)


def train_moco(task: Moco, stream: Any, num_updates: int) -> None:
    """Train as the program of the authors does."""
    optimizer = torch.optim.SGD(task.model["query"].parameters(), lr=0.5)
    for n in range(num_updates):
        (batch,) = stream.micro_batches(n)
        if n:
            follow(task.model)
        loss, keys = contrast(task.model, batch.inputs, task.queue)
        task.queue = torch.cat([keys, task.queue])[: len(task.queue)]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    follow(task.model)
