"""What flows from data through a task to the loop."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Total = Callable[[Tensor], Tensor]
"""Sums a tensor over all ranks."""


class Batch(NamedTuple):
    """Samples on the device of the run."""

    inputs: Tensor  # (B, *input_shape), float32
    targets: Tensor  # (B,), int64


class Later(NamedTuple):
    """A scalar that is computed with those of other batches, at once, so that each costs a share of the operations.

    >>> later = Later(lambda logits: logits.amax(-1), (torch.tensor([1.0, 3.0]),))
    >>> later.now(), later.of(torch.tensor([[1.0, 3.0], [4.0, 2.0]]))
    (tensor(3.), tensor([3., 4.]))
    """

    of: Callable[..., Tensor]  # of `tensors` with further dimensions in front, which the result then has
    tensors: tuple[Tensor, ...]  # without gradients

    def now(self) -> Tensor:
        """The scalar, shape ()."""
        return self.of(*self.tensors)

    def clone(self) -> Later:
        """The same, of tensors in memory of their own."""
        return Later(self.of, tuple(tensor.clone() for tensor in self.tensors))


def later(of: Callable[..., Tensor], *tensors: Tensor) -> Tensor | Later:
    """`of(*tensors)`, later; in a graph at once, where it is one of many operations."""
    return of(*tensors) if torch.compiler.is_compiling() else Later(of, tensors)


class Outcome(NamedTuple):
    """What a task makes of one batch. Scalars (shape ()) are means over the `num_targets` targets of the batch.

    Where it has no targets they may be NaN; with sharded weights, their gradients may not.
    """

    losses: dict[str, Tensor]  # backpropagated as their sum, which is logged as `loss`
    measurements: Mapping[str, Tensor | Later]
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

    def scalars(self) -> dict[str, Tensor | Later]:
        """What is logged: the total loss, the single ones if there are several, the measurements."""
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
