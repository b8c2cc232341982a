"""A network whose forward calls an all-reduce."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hydrant.errors import ConfigError


class AllReduceNet(nn.Module):
    """Two convolutions and three linear layers; a sum over the samples of all ranks shifts the features in between.

    The sum has no gradient, so torch.compile computes the same as eager, in one graph.

    Args:
        input_shape: (C, H, W) of one image; H and W are 16 pixels or more.
        num_classes: size of the output.
        shift: factor of the sum before it is added to the features.

    Raises:
        ConfigError: the samples are no images of 16 pixels or more.
    """

    def __init__(self, *, input_shape: Sequence[int], num_classes: int, shift: float) -> None:
        super().__init__()
        if len(input_shape) != 3 or min(input_shape[1:]) < 16:
            message = "all_reduce_net needs images of 16 pixels or more, not"
            raise ConfigError("model", f"{message} data.input_shape={list(input_shape)}")
        self.shift = shift
        self.features = nn.Sequential(
            nn.Conv2d(input_shape[0], 6, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        )  # fmt: skip
        height, width = (((size - 4) // 2 - 4) // 2 for size in input_shape[1:])
        self.hidden = nn.Linear(16 * height * width, 120)
        self.classifier = nn.Sequential(nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, num_classes))

    def forward(self, inputs: Tensor) -> Tensor:
        """`inputs` (B, C, H, W) -> logits (B, num_classes)."""
        hidden = self.hidden(self.features(inputs))
        with torch.no_grad():
            total = hidden.sum(0)
            dist.all_reduce(total)
        return self.classifier(hidden + self.shift * total)
