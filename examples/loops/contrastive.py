"""A contrastive model (InfoNCE) finds the lower half of each digit among those of this batch and the one before."""

import torch
import torch.nn.functional as F
from torch import nn

from hydrant.batch import Outcome
from hydrant.tasks import Task


class Towers(nn.Module):
    """The features of both halves, (B, 8) each, and a learned temperature (Radford et al., 2021)."""

    def __init__(self):
        super().__init__()
        self.upper, self.lower = nn.Linear(32, 8), nn.Linear(32, 8)
        self.log_scale = nn.Parameter(torch.ones(()))

    def forward(self, images):
        upper, lower = images.flatten(1).split(32, dim=1)
        return F.normalize(self.upper(upper)), F.normalize(self.lower(lower))


def info_nce(model, upper, lower, memory):
    """`memory` has lower halves of before as more negatives (Wang et al., 2020)."""
    logits = model.log_scale.exp() * upper @ torch.cat([lower, memory]).T
    return F.cross_entropy(logits, torch.arange(len(upper), device=upper.device))


class Halves(Task):
    loss_of_batch = True

    def __init__(self, model, *, batch_size, metrics):
        super().__init__(model, metrics)
        self.register_buffer("memory", torch.zeros(batch_size, 8))

    def assess(self, outputs, batch):
        upper, lower = outputs
        return Outcome(
            {"loss": info_nce(self.model, upper, lower, self.memory)}, {}, batch.targets, len(upper), lower
        )

    def end_update(self, carried):
        self.memory.copy_(carried)


def plain_loop(model, batches):
    optimizer, memory = torch.optim.SGD(model.parameters(), lr=0.1), None
    for images, _ in batches:
        upper, lower = model(images)
        memory = torch.zeros_like(lower) if memory is None else memory
        loss = info_nce(model, upper, lower, memory)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        memory = lower.detach()
    return loss.item()


if __name__ == "__main__":
    from sklearn.datasets import load_digits

    images = torch.tensor(load_digits().data).float() / 16
    print(plain_loop(Towers(), [(batch, None) for batch in images[:1792].split(64)] * 30))
