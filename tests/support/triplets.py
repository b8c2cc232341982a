"""Batch-hard triplets of digits, a loss of a whole batch, and their plain loop."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant import seeding


def make_encoder(input_shape: Any, num_classes: int) -> nn.Module:
    del input_shape, num_classes
    layers = (nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))
    return nn.Sequential(nn.Flatten(), *layers)


def batch_hard(outputs: Tensor, targets: Tensor) -> Tensor:
    """The furthest sample of the same class against the nearest of another one: Hermans et al., 2017."""
    distances = (outputs[:, None] - outputs[None]).square().sum(-1)
    is_same = targets[:, None] == targets[None]
    furthest = distances.masked_fill(~is_same, 0.0).amax(1)
    return F.softplus(furthest - distances.masked_fill(is_same, torch.inf).amin(1)).mean()


def plain_loop(task: Any, stream: Any, num_updates: int) -> None:
    """Train on whole batches; the dropout and the batch norm are those of the micro-batches of the stream."""
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1, momentum=0.9)
    for n in range(num_updates):
        batches, outputs = list(stream.micro_batches(n)), list[Any]()
        for idx, batch in enumerate(batches):
            seeding.seed_micro_step(0, n, idx, torch.device("cpu"))
            outputs.append(task.outputs(batch))
        optimizer.zero_grad()
        batch_hard(torch.cat(outputs), torch.cat([batch.targets for batch in batches])).backward()
        torch.nn.utils.clip_grad_norm_(task.parameters(), 1.0)
        optimizer.step()
