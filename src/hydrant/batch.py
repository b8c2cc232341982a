"""Batches of the data, and what a task returns for one."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

AllReduce = Callable[[Tensor], Tensor]
"""Sums a tensor over all ranks."""


class Batch(NamedTuple):
    """Samples on the device of the run."""

    inputs: Tensor  # (B, *input_shape), float32
    targets: Tensor  # (B,), int64


class Outcome(NamedTuple):
    """What a task returns for one batch. Scalars (shape ()) are means over the `num_targets` targets of the batch.

    If the batch has no targets, scalars may be NaN; with sharded weights, their gradients may not.

    A measurement may also be a bool tensor of any shape, such as which targets were predicted correctly. Its logged
    value is the fraction that is true. The fractions of many updates are computed together, which saves kernel
    launches.
    """

    losses: dict[str, Tensor]  # their sum is backpropagated, and logged as `loss`
    measurements: dict[str, Tensor]
    predictions: Tensor  # (B, ...), detached: for metrics that are not means
    num_targets: int

    def clone(self) -> Outcome:
        """Copy all tensors to new memory; gradients still flow through the copies."""
        losses = {name: value.clone() for name, value in self.losses.items()}
        measurements = {name: value.clone() for name, value in self.measurements.items()}
        return Outcome(losses, measurements, self.predictions.clone(), self.num_targets)

    def total_loss(self) -> Tensor:
        """Return the sum of the losses, shape ()."""
        return functools.reduce(operator.add, self.losses.values())

    def scalars(self) -> dict[str, Tensor]:
        """Return what is logged as a mean: the total loss, each loss if there are several, and the measurements."""
        parts = self.losses if len(self.losses) > 1 else {}
        return {"loss": self.total_loss(), **parts, **self.measurements}


def mean_loss(outcomes: Sequence[Outcome], all_reduce: AllReduce) -> Tensor:
    """Return the mean loss over the targets of all ranks, shape (). It is the same number on every rank."""
    sums = outcomes[0].total_loss().new_zeros(2, dtype=torch.float64)  # of the losses, and of the targets
    for outcome in outcomes:
        if outcome.num_targets:
            sums[0] += outcome.total_loss().detach() * outcome.num_targets
            sums[1] += outcome.num_targets
    loss, num_targets = all_reduce(sums)
    return loss / num_targets.clamp(min=1)
