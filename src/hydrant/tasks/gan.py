"""A generative adversarial network: two models with opposing losses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome
from hydrant.checks import check_number
from hydrant.errors import ConfigError
from hydrant.tasks.base import Task


class Gan(Task):
    """Goodfellow et al., 2014, with the non-saturating loss of the generator (section 3). Both models also receive the
    classes (Mirza & Osindero, 2014). Both losses use the same samples, and one update changes both models.

    In evaluation, `kernel_distance` measures how far the samples are from the real ones: the squared MMD of the pixels,
    batch by batch, with the kernel (x . y / d + 1)^3 of the KID (Binkowski et al., 2018).

    Args:
        model: `generator`, `(noise (B, latent_size), classes (B,)) -> samples`, and `discriminator`,
            `(samples, classes) -> logits (B,)`.
        num_pictures: samples per class in the picture. They are made from the same noise each time.
        metrics: torchmetrics by name, for evaluation. They get the discriminator's logits.

    Raises:
        ConfigError: `model` lacks one of the two, or `num_pictures` is below 1.
    """

    best_metric: ClassVar[str] = "val/kernel_distance"

    def __init__(self, model: nn.ModuleDict, *, num_pictures: int, metrics: Mapping[str, nn.Module]) -> None:
        super().__init__(model, metrics)
        missing = {"generator", "discriminator"} - {name for name, _ in model.named_children()}
        if missing:
            raise ConfigError(
                "model", f"this task needs a {' and a '.join(sorted(missing))}", remedy="use model=gan"
            )
        check_number("task.num_pictures", num_pictures, above=0)
        generator = self._models["generator"]
        shape = (num_pictures * generator.num_classes, generator.latent_size)
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        self.register_buffer("noise", noise, persistent=False)

    @property
    def _models(self) -> Any:
        return self.model  # the trained or the averaged models

    def forward(self, batch: Batch) -> Outcome:
        """`batch.inputs` (B, ...) are real samples, `batch.targets` (B,) int64 are their classes."""
        real, classes = batch
        generator, discriminator = self._models["generator"], self._models["discriminator"]
        noise = torch.randn(len(real), generator.latent_size, device=real.device, dtype=real.dtype)
        fake = generator(noise, classes)
        generator_logits = discriminator(fake, classes).float()
        fake_logits = discriminator(fake.detach(), classes).float()
        real_logits = discriminator(real, classes).float()
        losses = {
            "generator": F.softplus(-generator_logits).mean(),
            "discriminator": (F.softplus(-real_logits) + F.softplus(fake_logits)).mean(),
        }
        measurements = {"real_accuracy": real_logits > 0, "fake_accuracy": fake_logits < 0}
        if not self.training:
            pixels = real.float().flatten(1), fake.float().flatten(1)
            measurements["kernel_distance"] = kernel_distance(*pixels)
        return Outcome(losses, measurements, real_logits.detach(), len(real))

    def pictures(self) -> dict[str, Tensor]:
        """Return one picture: a column of samples for each class, each enlarged to about 32 pixels if it is smaller."""
        from torchvision.utils import make_grid

        generator, noise = self._models["generator"], cast("Tensor", self.noise)
        classes = torch.arange(len(noise), device=noise.device) % generator.num_classes
        samples = generator(noise, classes).float()
        scale = max(32 // samples.shape[2], 1)
        enlarged = samples.repeat_interleave(scale, dim=2).repeat_interleave(scale, dim=3)
        return {"samples": make_grid(enlarged, nrow=generator.num_classes, padding=1, normalize=True)}


def kernel_distance(one: Tensor, other: Tensor) -> Tensor:
    """Return the squared MMD of two sets of samples, (N, D) each: shape (), not negative, biased upwards for small N.

    Gretton et al., "A kernel two-sample test", 2012, equation 5.

    >>> import torch
    >>> points = torch.randn(500, 4, generator=torch.Generator().manual_seed(0))
    >>> bool(kernel_distance(points[:250], points[250:]) < 0.2 < kernel_distance(points, points + 1))
    True
    """

    def similarity(a: Tensor, b: Tensor) -> Tensor:
        return ((a @ b.T / a.shape[1] + 1) ** 3).mean()

    return similarity(one, one) + similarity(other, other) - 2 * similarity(one, other)
