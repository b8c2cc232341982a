"""The metrics of all lanes between two log points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hydrant.training.metrics import mean_over_targets
from hydrant.training.trainer import Trainer

_MAX_PENDING = 64  # calls of `add` whose values are summed together


class StackedMeter:
    """Sums the metrics of all lanes on the device, and gives each lane its own when it reads them.

    Args:
        lanes: the runs of a stack.
    """

    def __init__(self, lanes: Sequence[Trainer]) -> None:
        self._lanes = list(lanes)
        self._names: list[str] = []
        self._pending: list[Tensor] = []  # (lanes, metrics), float64, for each call
        self._weights: list[Tensor | int] = []  # (lanes,), or one for all lanes
        self._sums: Tensor | int = 0  # (lanes, metrics)
        self._weight: Tensor | int = 0  # of the sums

    def add(self, values: Mapping[str, Tensor], weights: Tensor | int) -> None:
        """Add means of each lane: numbers, (lanes,), or bool tensors, (lanes, ...), of which the mean is taken.

        Args:
            values: by name, the same names at every call.
            weights: the number of targets of each lane, (lanes,), or of all of them. A lane of weight 0 is left out.
        """
        if not weights.numel() if isinstance(weights, Tensor) else not weights:
            return
        self._names = list(values)
        self._pending.append(
            torch.stack([mean_over_targets(value.detach()) for value in values.values()], dim=1)
        )
        self._weights.append(weights)
        if len(self._pending) >= _MAX_PENDING:
            self._fold()

    def flush(self) -> None:
        """Give the lanes what was added since the last call."""
        self._fold()
        if isinstance(self._sums, int):
            return
        weights = self._weight
        for lane, trainer in enumerate(self._lanes):
            weight = weights[lane] if isinstance(weights, Tensor) else weights
            trainer.meter.add_sums(self._names, self._sums[lane], weight)
        self._sums = self._weight = 0

    def _fold(self) -> None:
        if not self._pending:
            return
        rows = torch.stack(self._pending, dim=1)  # (lanes, calls, metrics)
        weights = self._weights[0]
        if isinstance(weights, Tensor) or len(set(self._weights)) > 1:
            like = torch.ones(len(rows), dtype=torch.float64, device=rows.device)
            by_call = torch.stack([like * weight for weight in self._weights], dim=1)[:, :, None]
            rows = rows.where(by_call != 0, 0.0) * by_call  # the mean of a lane that is left out may be NaN
            self._weight = self._weight + by_call.sum(dim=(1, 2))
        else:
            rows = rows * weights
            self._weight = self._weight + len(self._weights) * weights
        self._sums = self._sums + rows.sum(1)
        self._pending, self._weights = [], []
