"""The one schedule that depends on how training goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hydrant.clock import Clock
from hydrant.errors import ConfigError
from hydrant.schedules.base import lengths, refuse_negative


class Plateau:
    """Falls by `factor` when a metric of the evaluations has not improved `patience` times: torch's own.

    No function of the update, so it has a state, which checkpoints hold. The arguments are those of torch's
    `ReduceLROnPlateau` (`patience` and `cooldown` count evaluations), but for `min_ratio`, its `min_lr`, and `eps`,
    which are shares of the field's own value. `warmup` and `warmup_init_ratio` as for every schedule; what is
    observed during the warmup counts.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        metric: str,
        mode: Literal["min", "max"],
        factor: float,
        patience: int,
        threshold: float,
        threshold_mode: Literal["rel", "abs"],
        cooldown: int,
        min_ratio: float,
        eps: float,
        warmup: object,
        warmup_init_ratio: float,
    ) -> None:
        refuse_negative(min_ratio=min_ratio, warmup_init_ratio=warmup_init_ratio, patience=patience)
        if not 0 < factor < 1:
            raise ConfigError("factor", f"needs a number above 0 and below 1, not {factor}")
        self.metric = metric
        self._warmup = lengths(clock, warmup, 0)[0]
        self.mode = mode
        self._warmup_init_ratio = warmup_init_ratio
        self._stand_in = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        self._torch = ReduceLROnPlateau(
            self._stand_in, mode, factor, patience, threshold, threshold_mode, cooldown, min_ratio, eps
        )

    def __call__(self, update: int) -> float:
        ratio: float = self._stand_in.param_groups[0]["lr"]
        if update >= self._warmup:
            return ratio
        return self._warmup_init_ratio + (ratio - self._warmup_init_ratio) * update / self._warmup

    def observe(self, row: Mapping[str, float]) -> None:
        """Take an evaluation's metrics."""
        self._torch.step(row[self.metric])

    def state_dict(self) -> dict[str, Any]:
        return {"ratio": self._stand_in.param_groups[0]["lr"], "torch": self._torch.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._stand_in.param_groups[0]["lr"] = state["ratio"]
        self._torch.load_state_dict(state["torch"])
