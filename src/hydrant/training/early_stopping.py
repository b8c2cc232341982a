"""Which evaluation is the best, and when a run ends early because none was better for too long."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hydrant.clock import Interval


@dataclass(frozen=True)
class EarlyStopping:
    """The metric that chooses the best checkpoint and may end a run early.

    `best` is the best evaluation so far (`metric`, `value`, `num_updates`), or None before the first one.
    """

    metric: str
    mode: str  # "max" or "min"
    patience: int | None  # evaluations in a row without a new best that end the run
    eval_every: Interval

    def improved(
        self, best: Mapping[str, Any] | None, row: Mapping[str, float], num_updates: int
    ) -> dict[str, Any] | None:
        """Return the new best if the row holds one, else None."""
        value = row.get(self.metric)
        if value is None or not math.isfinite(value):
            return None
        if best is not None and (value <= best["value"] if self.mode == "max" else value >= best["value"]):
            return None
        return {"metric": self.metric, "value": value, "num_updates": num_updates}

    def has_stalled(self, best: Mapping[str, Any] | None, num_updates: int) -> bool:
        """Return whether `patience` evaluations have followed the best one. Depends on its arguments only."""
        if self.patience is None:
            return False
        best_at = 0 if best is None else best["num_updates"]
        return self.eval_every.count(num_updates) - self.eval_every.count(best_at) >= self.patience
