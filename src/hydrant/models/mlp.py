"""A multilayer perceptron."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from hydrant.checks import check_number
from hydrant.errors import ConfigError


class MLP(nn.Module):
    """Flatten, then `Linear -> ReLU -> Dropout` for each hidden layer, then a linear classifier.

    Args:
        input_shape: shape of one sample, e.g. (1, 8, 8).
        num_classes: size of the output; None, of data without classes: 1, for a regression.
        hidden: widths of the hidden layers; []: logistic regression.
        dropout: probability of dropping a hidden unit, 0..1.

    Raises:
        ConfigError: `dropout` is out of its range, or a layer has no units.
    """

    def __init__(
        self, *, input_shape: Sequence[int], num_classes: int | None, hidden: Sequence[int], dropout: float
    ) -> None:
        super().__init__()
        check_number("model.dropout", dropout, least=0, below=1)
        if any(width < 1 for width in hidden):
            raise ConfigError(
                "model.hidden", f"{list(hidden)} has a layer without units", remedy="give 1 or more"
            )
        widths = [math.prod(input_shape), *hidden]
        layers = [nn.Sequential(nn.Linear(n, m), nn.ReLU(), nn.Dropout(dropout)) for n, m in pairwise(widths)]
        self.hidden = nn.Sequential(*layers)
        self.classifier = nn.Linear(widths[-1], 1 if num_classes is None else num_classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """`inputs` (B, *input_shape) -> logits (B, num_classes)."""
        return self.classifier(self.hidden(inputs.flatten(1)))
