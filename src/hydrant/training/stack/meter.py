"""The metrics of all lanes between two log points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from hydrant.training.metrics import mean_over_targets
from hydrant.training.trainer import Trainer

_MAX_PENDING = 64  # calls of `add` whose values are given to the lanes together


class StackedMeter:
    """Collects the metrics of all lanes on the device, and adds them to the meter of each lane.

    Args:
        lanes: the runs of a stack.
    """

    def __init__(self, lanes: Sequence[Trainer]) -> None:
        self._lanes = list(lanes)
        self._names: list[str] = []
        self._pending: list[Tensor] = []  # (lanes, metrics), float64, for each call
        self._weights: list[Tensor | int] = []  # (lanes,), or one for all lanes

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
            self.flush()

    def flush(self) -> None:
        """Give the lanes what was added since the last call."""
        if not self._pending:
            return
        rows = torch.stack(self._pending, dim=1)  # (lanes, calls, metrics)
        weights = self._weights[0]
        if isinstance(weights, Tensor) or len(set(self._weights)) > 1:
            like = torch.ones(len(rows), dtype=torch.float64, device=rows.device)
            weights = torch.stack([like * weight for weight in self._weights], dim=1)  # (lanes, calls)
        for lane, trainer in enumerate(self._lanes):
            of_lane = weights[lane] if isinstance(weights, Tensor) else weights
            trainer.meter.add_rows(self._names, rows[lane], of_lane)
        self._pending, self._weights = [], []
