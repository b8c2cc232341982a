"""Which evaluation is the best, and when there has been no better one for too long."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hydrant.clock import Cadence


@dataclass(frozen=True)
class Goal:
    """The metric that decides the best checkpoint and the early end of a run.

    `best` is what it was so far: `metric`, `value`, `num_updates`; None before the first.
    """

    metric: str
    mode: str  # "max" or "min"
    patience: int | None  # evaluations in a row without a new best that end the run
    eval_every: Cadence

    def improved(
        self, best: Mapping[str, Any] | None, row: Mapping[str, float], num_updates: int
    ) -> dict[str, Any] | None:
        """The new best, if the row holds it."""
        value = row.get(self.metric)
        if value is None or not math.isfinite(value):
            return None
        if best is not None and (value <= best["value"] if self.mode == "max" else value >= best["value"]):
            return None
        return {"metric": self.metric, "value": value, "num_updates": num_updates}

    def has_stalled(self, best: Mapping[str, Any] | None, num_updates: int) -> bool:
        """Whether the evaluations since the best one are as many as `patience`: a function of the state alone."""
        every = self.eval_every.every
        if self.patience is None or every is None:
            return False
        best_at = 0 if best is None else best["num_updates"]
        return num_updates // every - best_at // every >= self.patience
