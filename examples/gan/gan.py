"""A generative adversarial network of digits: a generator, a discriminator, and the task with their losses."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome, widened
from hydrant.tasks import Task


class Generator(nn.Module):
    """Noise and a class -> a sample: a multilayer perceptron with batch norm and a `tanh` at the end.

    Args:
        latent_size: size of the noise vector, drawn from N(0, 1).
        output_shape: shape of one sample.
        output_range: least and greatest value of a sample.
        num_classes: number of classes.
        hidden: widths of the hidden layers.
    """

    def __init__(
        self,
        *,
        latent_size: int,
        output_shape: Sequence[int],
        output_range: tuple[float, float],
        num_classes: int,
        hidden: Sequence[int],
    ) -> None:
        super().__init__()
        self.latent_size, self.num_classes, self.output_shape = latent_size, num_classes, tuple(output_shape)
        self._low, self._high = output_range
        widths = [latent_size + num_classes, *hidden]
        self.hidden = nn.Sequential(
            *(
                nn.Sequential(nn.Linear(fan_in, fan_out, bias=False), nn.BatchNorm1d(fan_out), nn.ReLU())
                for fan_in, fan_out in itertools.pairwise(widths)
            )
        )
        self.output = nn.Linear(widths[-1], math.prod(output_shape))

    def forward(self, noise: Tensor, classes: Tensor) -> Tensor:
        """`noise` (B, latent_size), `classes` (B,) int64 -> samples (B, *output_shape)."""
        one_hot = F.one_hot(classes, self.num_classes).to(noise.dtype)
        hidden = self.hidden(torch.cat([noise, one_hot], dim=1))
        unit = (torch.tanh(self.output(hidden)) + 1) / 2  # in 0..1
        return (self._low + (self._high - self._low) * unit).unflatten(1, self.output_shape)


class Discriminator(nn.Module):
    """A sample and its class -> the logit of being real: a multilayer perceptron.

    Args:
        input_shape: shape of one sample.
        num_classes: number of classes.
        hidden: widths of the hidden layers.
        dropout: probability of dropping a hidden unit, 0..1.
    """

    def __init__(
        self, *, input_shape: Sequence[int], num_classes: int, hidden: Sequence[int], dropout: float
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        widths = [math.prod(input_shape) + num_classes, *hidden]
        self.hidden = nn.Sequential(
            *(
                nn.Sequential(nn.Linear(fan_in, fan_out), nn.LeakyReLU(0.2), nn.Dropout(dropout))
                for fan_in, fan_out in itertools.pairwise(widths)
            )
        )
        self.output = nn.Linear(widths[-1], 1)

    def forward(self, samples: Tensor, classes: Tensor) -> Tensor:
        """`samples` (B, *input_shape), `classes` (B,) int64 -> logits (B,)."""
        one_hot = F.one_hot(classes, self.num_classes).to(samples.dtype)
        return self.output(self.hidden(torch.cat([samples.flatten(1), one_hot], dim=1))).squeeze(1)


class Gan(Task):
    """Goodfellow et al., 2014, with the non-saturating loss of the generator (section 3). Both models also receive the
    classes (Mirza & Osindero, 2014). Both losses use the same samples, and one update changes both models: at once, or
    one after the other (`update_order`).

    In evaluation, `kernel_distance` measures how far the samples are from the real ones: the squared MMD of the pixels,
    batch by batch, with the kernel (x . y / d + 1)^3 of the KID (Binkowski et al., 2018).

    Args:
        model: `generator`, `(noise (B, latent_size), classes (B,)) -> samples`, and `discriminator`,
            `(samples, classes) -> logits (B,)`.
        num_pictures: samples per class in the picture. They are made from the same noise each time.
        metrics: torchmetrics by name, for evaluation. They get the discriminator's logits.
    """

    best_metric: ClassVar[str] = "val/kernel_distance"

    def __init__(self, model: nn.ModuleDict, *, num_pictures: int, metrics: Mapping[str, nn.Module]) -> None:
        super().__init__(model, metrics)
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
        losses: dict[str, Tensor] = {}
        measurements: dict[str, Tensor] = {}
        real_logits = torch.empty(0)
        if self.turn != "discriminator":
            losses["generator"] = F.softplus(-widened(discriminator(fake, classes))).mean()
        if self.turn != "generator":
            fake_logits = widened(discriminator(fake.detach(), classes))
            real_logits = widened(discriminator(real, classes))
            losses["discriminator"] = (F.softplus(-real_logits) + F.softplus(fake_logits)).mean()
            measurements = {"real_accuracy": real_logits > 0, "fake_accuracy": fake_logits < 0}
        if not self.training:
            pixels = widened(real).flatten(1), widened(fake).flatten(1)
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
