"""Metrics of a whole split that are no mean over batches, but a function of sums over its targets."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor, nn


class MetricOfSums(nn.Module):
    """A metric that is the `value` of the sums over a split. `update` gets values, such as predictions, and targets."""

    def __init__(self) -> None:
        super().__init__()
        self._sums: Tensor | None = None

    def update(self, values: Tensor, targets: Tensor) -> None:
        """Add a batch."""
        sums = self.sums(values, targets).double()
        self._sums = sums if self._sums is None else self._sums + sums

    def compute(self) -> Tensor:
        """Return the value over the batches of all ranks, shape (). All ranks call this together."""
        assert self._sums is not None
        sums = self._sums.clone()
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(sums)
        return self.value(sums)

    def reset(self) -> None:
        """Forget all batches."""
        self._sums = None

    def sums(self, values: Tensor, targets: Tensor) -> Tensor:
        """Return the sums over a batch, (K, ...)."""
        raise NotImplementedError

    def value(self, sums: Tensor) -> Tensor:
        """Return the metric, shape (), for the sums over all batches."""
        raise NotImplementedError
