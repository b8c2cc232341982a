"""Adversarial networks of digits whose optimizers take turns, and the plain loops of their authors."""

import contextlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant import seeding
from hydrant.batch import Batch, Outcome
from hydrant.tasks import Task
from hydrant.tasks.base import kept_buffers

NOISE = 4


def make_models(input_shape: Any, num_classes: int, is_normed: bool = True) -> nn.ModuleDict:
    del input_shape, num_classes
    norm = nn.BatchNorm1d(16) if is_normed else nn.LayerNorm(16)
    generator = nn.Sequential(nn.Linear(NOISE, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 64))
    critic = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), norm, nn.LeakyReLU(0.2), nn.Linear(16, 1))
    return nn.ModuleDict({"generator": generator, "critic": critic})


def binary(logits: Tensor, is_real: float) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, is_real))


def cross_entropy(critic: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
    return binary(critic(real), 1.0) + binary(critic(fake), 0.0)


def distance(critic: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
    """The loss of the critic of WGAN-GP, a derivative in it."""
    share = torch.rand(len(real), 1)
    between = (share * real + (1 - share) * fake).requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return critic(fake).mean() - critic(real).mean() + 10 * ((gradient.norm(dim=1) - 1) ** 2).mean()


class Gan(Task):
    """DCGAN (Radford et al., 2015) in the order of PyTorch's example, whose samples count once in the batch norms; or
    WGAN-GP (Gulrajani et al., 2017), which makes samples for the generator anew."""

    def __init__(self, model: nn.Module, *, is_wgan: bool, metrics: Any) -> None:
        super().__init__(model, metrics)
        self.is_wgan = is_wgan

    def forward(self, batch: Batch) -> Outcome:
        generator, critic = self.model.children()
        losses: dict[str, Tensor] = {}
        real = batch.inputs.flatten(1)
        noise = torch.randn(len(real), NOISE)
        if self.turn != "generator":
            with torch.no_grad(), contextlib.nullcontext() if self.is_wgan else kept_buffers(generator):
                fake = generator(noise)
            loss = distance if self.is_wgan else cross_entropy
            losses["critic"] = loss(critic, real, fake)
        if self.turn != "critic":
            logits = critic(generator(noise))
            losses["generator"] = -logits.mean() if self.is_wgan else binary(logits, 1.0)
        return Outcome(losses, {}, batch.targets, len(real))


def plain_loop(models: nn.ModuleDict, stream: Any, num_updates: int, *, every: int) -> None:
    """Train as the programs of the authors do. `every` 1: DCGAN; else WGAN-GP with so many steps of the critic."""
    generator, critic = models["generator"], models["critic"]
    of_generator, of_critic = (torch.optim.Adam(model.parameters(), lr=1e-3) for model in models.values())
    for n in range(num_updates):
        (batch,) = stream.micro_batches(n)
        seeding.seed_micro_step(0, n, 0, torch.device("cpu"))
        real, noise = batch.inputs.flatten(1), torch.randn(len(batch.inputs), NOISE)
        fake = generator(noise)
        of_critic.zero_grad()
        if every == 1:
            binary(critic(real), 1.0).backward()
            binary(critic(fake.detach()), 0.0).backward()
        else:
            distance(critic, real, fake.detach()).backward()
        of_critic.step()
        if (n + 1) % every == 0:
            of_generator.zero_grad()
            (binary(critic(fake), 1.0) if every == 1 else -critic(generator(noise)).mean()).backward()
            of_generator.step()
