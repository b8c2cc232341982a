"""Losses of a whole batch of digits, InfoNCE and batch-hard triplets, and their plain loops."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant import seeding
from hydrant.batch import Batch, Outcome
from hydrant.tasks import Task


def make_towers(input_shape: Any, num_classes: int) -> nn.ModuleDict:
    del input_shape, num_classes
    return nn.ModuleDict({"upper": nn.Linear(32, 8), "lower": nn.Linear(32, 8)})


def make_encoder(input_shape: Any, num_classes: int) -> nn.Module:
    del input_shape, num_classes
    layers = (nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))
    return nn.Sequential(nn.Flatten(), *layers)


def info_nce(one: Tensor, other: Tensor, memory: Tensor, log_scale: Tensor) -> Tensor:
    """With a learned temperature (Radford et al., 2021), and samples of before as negatives (Wang et al., 2020)."""
    logits = log_scale.exp() * F.normalize(one) @ torch.cat([F.normalize(other), memory]).T
    return F.cross_entropy(logits, torch.arange(len(one)))


def batch_hard(outputs: Tensor, targets: Tensor) -> Tensor:
    """The furthest sample of the same class against the nearest of another one: Hermans et al., 2017."""
    distances = (outputs[:, None] - outputs[None]).square().sum(-1)
    is_same = targets[:, None] == targets[None]
    furthest = distances.masked_fill(~is_same, 0.0).amax(1)
    return F.softplus(furthest - distances.masked_fill(is_same, torch.inf).amin(1)).mean()


class Halves(Task):
    """Finds the lower half of each digit for its upper half."""

    loss_of_batch = True
    memory: Tensor

    def __init__(self, model: nn.Module, *, metrics: Any) -> None:
        super().__init__(model, metrics)
        self.log_scale = nn.Parameter(torch.ones(()))
        self.register_buffer("memory", torch.zeros(16, 8))

    def outputs(self, batch: Batch) -> dict[str, Tensor]:
        halves = batch.inputs.flatten(1).split(32, dim=1)
        towers = self.model.named_children()
        return {name: tower(half) for (name, tower), half in zip(towers, halves, strict=True)}

    def assess(self, outputs: dict[str, Tensor], batch: Batch) -> Outcome:
        upper, lower = outputs.values()
        loss = info_nce(upper, lower, self.memory, self.log_scale)
        return Outcome({"info_nce": loss}, {}, batch.targets, len(upper), F.normalize(lower))

    def end_update(self, carried: Tensor) -> None:
        self.memory.copy_(carried)


def plain_loop(task: Any, stream: Any, num_updates: int) -> None:
    """Train on whole batches; the dropout and the batch norm are those of the micro-batches of the stream."""
    optimizer = torch.optim.SGD(task.parameters(), lr=0.1, momentum=0.9)
    for n in range(num_updates):
        batches, outputs = list(stream.micro_batches(n)), list[Any]()
        for idx, batch in enumerate(batches):
            seeding.seed_micro_step(0, n, idx, torch.device("cpu"))
            outputs.append(task.outputs(batch))
        if isinstance(task, Halves):
            upper, lower = (torch.cat([of_batch[name] for of_batch in outputs]) for name in outputs[0])
            loss = info_nce(upper, lower, task.memory, task.log_scale)
            task.memory = F.normalize(lower).detach()
        else:
            loss = batch_hard(torch.cat(outputs), torch.cat([batch.targets for batch in batches]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(task.parameters(), 1.0)
        optimizer.step()
