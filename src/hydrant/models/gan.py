"""A class-conditional generator, and a discriminator between its samples and real ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hydrant.checks import check_number


class Generator(nn.Module):
    """Noise and a class -> a sample: a multilayer perceptron with batch norm and a `tanh` at the end.

    Args:
        latent_size: size of the noise vector, drawn from N(0, 1).
        output_shape: shape of one sample.
        output_range: least and greatest value of a sample.
        num_classes: number of classes.
        hidden: widths of the hidden layers.

    Raises:
        ConfigError: `latent_size` is below 1.
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
        check_number("model.modules.generator.latent_size", latent_size, least=1)
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
