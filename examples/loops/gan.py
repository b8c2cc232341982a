"""Adversarial networks whose optimizers take turns: DCGAN (Radford et al., 2015), WGAN-GP (Gulrajani et al., 2017)."""

import contextlib

import torch
import torch.nn.functional as F
from torch import nn

from hydrant.batch import Outcome
from hydrant.tasks import Task
from hydrant.tasks.base import kept_buffers

NOISE = 4


def make_models(is_normed=True, width=16):
    norm = nn.BatchNorm1d(width) if is_normed else nn.LayerNorm(width)
    generator = nn.Sequential(nn.Linear(NOISE, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 64))
    critic = nn.Sequential(nn.Flatten(), nn.Linear(64, width), norm, nn.LeakyReLU(0.2), nn.Linear(width, 1))
    return nn.ModuleDict({"generator": generator, "critic": critic})


def binary(logits, is_real):
    return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, is_real))


def cross_entropy(critic, real, fake):
    return binary(critic(real), 1.0) + binary(critic(fake), 0.0)


def distance(critic, real, fake):
    """The loss of the critic of WGAN-GP, a derivative in it."""
    share = torch.rand(len(real), 1, device=real.device)
    between = (share * real + (1 - share) * fake).requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return critic(fake).mean() - critic(real).mean() + 10 * ((gradient.norm(dim=1) - 1) ** 2).mean()


class Gan(Task):
    """DCGAN in the order of PyTorch's example, whose samples count once in the batch norms; or WGAN-GP, which makes
    samples for the generator anew."""

    def __init__(self, model, *, is_wgan, metrics):
        super().__init__(model, metrics)
        self.is_wgan = is_wgan

    def forward(self, batch):
        generator, critic = self.model["generator"], self.model["critic"]
        losses, real = {}, batch.inputs.flatten(1)
        noise = torch.randn(len(real), NOISE, device=real.device)
        if self.turn != "generator":
            with torch.no_grad(), contextlib.nullcontext() if self.is_wgan else kept_buffers(generator):
                fake = generator(noise)
            losses["critic"] = (distance if self.is_wgan else cross_entropy)(critic, real, fake)
        if self.turn != "critic":
            logits = critic(generator(noise))
            losses["generator"] = -logits.mean() if self.is_wgan else binary(logits, 1.0)
        return Outcome(losses, {}, batch.targets, len(real))


def plain_loop(models, batches, every=1, has_third=False):
    """Train as the programs of the authors do. `every` 1: DCGAN; else WGAN-GP with so many steps of the critic.
    A third optimizer, as in InfoGAN, trains all parameters by the loss of the generator."""
    generator, critic = models["generator"], models["critic"]
    of_generator, of_critic = (torch.optim.Adam(model.parameters(), lr=1e-3) for model in models.values())
    of_both = torch.optim.Adam(models.parameters(), lr=1e-3)
    for n, (images, _) in enumerate(batches):
        real, noise = images.flatten(1), torch.randn(len(images), NOISE)
        fake = generator(noise)
        of_critic.zero_grad()
        (cross_entropy if every == 1 else distance)(critic, real, fake.detach()).backward()
        of_critic.step()
        if (n + 1) % every == 0:
            of_generator.zero_grad()
            (binary(critic(fake), 1.0) if every == 1 else -critic(generator(noise)).mean()).backward()
            of_generator.step()
        if has_third:
            of_both.zero_grad()
            binary(critic(generator(noise)), 1.0).backward()
            of_both.step()


if __name__ == "__main__":
    from sklearn.datasets import load_digits

    images, models = torch.tensor(load_digits().data).float() / 16, make_models()
    plain_loop(models, [(batch, None) for batch in images.split(64)] * 30)
    print(cross_entropy(models["critic"], images, models["generator"](torch.randn(len(images), NOISE))))
