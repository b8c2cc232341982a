"""What flows from data through a task to the loop."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """Samples on the device of the run."""

    inputs: Tensor  # (B, *input_shape), float32
    targets: Tensor  # (B,), int64


class Outcome(NamedTuple):
    """What a task makes of one batch. Scalars (shape ()) are means over the `num_targets` targets of the batch."""

    losses: dict[str, Tensor]  # backpropagated as their sum, which is logged as `loss`
    measurements: dict[str, Tensor]
    predictions: Tensor  # (B, ...), detached: for metrics that are no means
    num_targets: int

    def clone(self) -> Outcome:
        """The same, with gradients, in memory of its own."""
        losses, measurements = (
            {name: value.clone() for name, value in values.items()}
            for values in (self.losses, self.measurements)
        )
        return Outcome(losses, measurements, self.predictions.clone(), self.num_targets)

    def total_loss(self) -> Tensor:
        """The sum of the losses, shape ()."""
        first, *others = self.losses.values()
        return sum(others, start=first)

    def scalars(self) -> dict[str, Tensor]:
        """What is logged: the total loss, the single ones if there are several, the measurements."""
        parts = self.losses if len(self.losses) > 1 else {}
        return {"loss": self.total_loss()} | parts | self.measurements
