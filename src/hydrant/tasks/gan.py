"""A generative adversarial network: two models with a loss each, which pull against each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome
from hydrant.errors import ConfigError
from hydrant.tasks.base import Task


class Gan(Task):
    """Goodfellow et al., 2014, with the generator's loss that does not saturate (section 3), and classes given to both
    models (Mirza & Osindero, 2014). Both losses are of the same samples: one update moves both models at once.

    In evaluation `kernel_distance` says how far the samples are from the real ones: the squared MMD of their pixels,
    batch by batch, with the kernel (x . y / d + 1)^3, which is that of the KID (Binkowski et al., 2018).

    Args:
        model: `generator`, `(noise (B, latent_size), classes (B,)) -> samples`, and `discriminator`,
            `(samples, classes) -> logits (B,)`.
        num_pictures: samples of each class in the picture, drawn from the same noise each time.
        metrics: torchmetrics by name, for evaluation, of the discriminator's logits.
    """

    def __init__(self, model: nn.ModuleDict, *, num_pictures: int, metrics: Mapping[str, nn.Module]) -> None:
        super().__init__(model, metrics)
        missing = {"generator", "discriminator"} - {name for name, _ in model.named_children()}
        if missing:
            raise ConfigError("model", f"this task needs a {' and a '.join(sorted(missing))}; use model=gan")
        if num_pictures < 1:
            raise ConfigError("task.num_pictures", f"needs a number above 0, not {num_pictures}")
        shape = (num_pictures * self._generator.num_classes, self._generator.latent_size)
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        self.register_buffer("noise", noise, persistent=False)

    @property
    def _generator(self) -> Any:
        models: Any = self.model  # which may be the averaged one
        return models["generator"]

    @property
    def _discriminator(self) -> Any:
        models: Any = self.model
        return models["discriminator"]

    def forward(self, batch: Batch) -> Outcome:
        """`batch.inputs` (B, ...) are real samples, `batch.targets` (B,) int64 their classes."""
        real, classes = batch
        noise = torch.randn(len(real), self._generator.latent_size, device=real.device, dtype=real.dtype)
        fake = self._generator(noise, classes)
        believed = self._discriminator(fake, classes).float()
        told_fake = self._discriminator(fake.detach(), classes).float()
        told_real = self._discriminator(real, classes).float()
        losses = {
            "generator": F.softplus(-believed).mean(),
            "discriminator": (F.softplus(-told_real) + F.softplus(told_fake)).mean(),
        }
        measurements = {"real_accuracy": told_real > 0, "fake_accuracy": told_fake < 0}
        if not self.training:
            measurements["kernel_distance"] = kernel_distance(
                real.float().flatten(1), fake.float().flatten(1)
            )
        return Outcome(losses, measurements, told_real.detach(), len(real))

    def pictures(self) -> dict[str, Tensor]:
        """A column for each class, each sample at least 32 pixels high."""
        from torchvision.utils import make_grid

        num_classes = self._generator.num_classes
        noise: Any = self.noise
        classes = torch.arange(len(noise), device=noise.device) % num_classes
        samples = self._generator(noise, classes).float()
        scale = max(32 // samples.shape[2], 1)
        enlarged = samples.repeat_interleave(scale, dim=2).repeat_interleave(scale, dim=3)
        return {"samples": make_grid(enlarged, nrow=num_classes, padding=1, normalize=True)}


def kernel_distance(one: Tensor, other: Tensor) -> Tensor:
    """The squared MMD of two sets of samples, (N, D) each; shape (), never negative, larger for few samples.

    Gretton et al., "A kernel two-sample test", 2012, equation 5.

    >>> import torch
    >>> points = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    >>> bool(kernel_distance(points[:250], points[250:]) < 0.2 < kernel_distance(points, points + 1))
    True
    """

    def similarity(a: Tensor, b: Tensor) -> Tensor:
        return ((a @ b.T / a.shape[1] + 1) ** 3).mean()

    return similarity(one, one) + similarity(other, other) - 2 * similarity(one, other)
