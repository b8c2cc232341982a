"""A deep linear network."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from torch import Tensor, nn

from hydrant.checks import check_number


class DeepLinear(nn.Module):
    """Linear layers without biases and activations, as wide as a flattened sample; the last one returns logits.

    Args:
        input_shape: shape of one sample, e.g. (1, 8, 8).
        num_classes: size of the output.
        num_layers: number of layers, 1 or more.

    Raises:
        ConfigError: `num_layers` is below 1.
    """

    def __init__(self, *, input_shape: Sequence[int], num_classes: int, num_layers: int) -> None:
        super().__init__()
        check_number("model.num_layers", num_layers, above=0)
        widths = [math.prod(input_shape)] * num_layers + [num_classes]
        self.layers = nn.Sequential(
            *(nn.Linear(fan_in, fan_out, bias=False) for fan_in, fan_out in itertools.pairwise(widths))
        )

    def forward(self, inputs: Tensor) -> Tensor:
        """`inputs` (B, *input_shape) -> logits (B, num_classes)."""
        return self.layers(inputs.flatten(1))
