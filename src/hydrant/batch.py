"""What flows from data through a task to the loop."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Total = Callable[[Tensor], Tensor]
"""Sums a tensor over all ranks."""


class Batch(NamedTuple):
    """Samples on the device of the run."""

    inputs: Tensor  # (B, *input_shape), float32
    targets: Tensor  # (B,), int64


class Outcome(NamedTuple):
    """What a task makes of one batch. Scalars (shape ()) are means over the `num_targets` targets of the batch.

    Where it has no targets they may be NaN; with sharded weights, their gradients may not. A measurement may also be
    flags, bool of any shape, such as which targets were told right. What is logged is the share of those that are true;
    they are counted for many updates at once, so that each update launches less.
    """

    losses: dict[str, Tensor]  # backpropagated as their sum, which is logged as `loss`
    measurements: dict[str, Tensor]
    predictions: Tensor  # (B, ...), detached: for metrics that are no means
    num_targets: int

    def clone(self) -> Outcome:
        """The same, with gradients, in memory of its own."""
        losses = {name: value.clone() for name, value in self.losses.items()}
        measurements = {name: value.clone() for name, value in self.measurements.items()}
        return Outcome(losses, measurements, self.predictions.clone(), self.num_targets)

    def total_loss(self) -> Tensor:
        """The sum of the losses, shape ()."""
        return functools.reduce(operator.add, self.losses.values())

    def scalars(self) -> dict[str, Tensor]:
        """What is logged the mean of: the total loss, the single ones if there are several, the measurements."""
        parts = self.losses if len(self.losses) > 1 else {}
        return {"loss": self.total_loss(), **parts, **self.measurements}


def mean_loss(outcomes: Sequence[Outcome], total: Total) -> Tensor:
    """Over the targets of all ranks, which `total` sums over, so that all decide alike by it; shape ()."""
    sums = outcomes[0].total_loss().new_zeros(2, dtype=torch.float64)  # of the losses, and of the targets
    for outcome in outcomes:
        if outcome.num_targets:
            sums[0] += outcome.total_loss().detach() * outcome.num_targets
            sums[1] += outcome.num_targets
    loss, num_targets = total(sums)
    return loss / num_targets.clamp(min=1)
