"""The one schedule that depends on metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hydrant.checks import check_number
from hydrant.clock import Clock
from hydrant.schedules.base import check_not_negative, split_run


class Plateau:
    """Multiplies the ratio by `factor` when an evaluation metric stops improving: torch's `ReduceLROnPlateau`.

    It is not a function of the update, so it has a state, which checkpoints contain. The arguments are those of
    torch's class; `patience` and `cooldown` count evaluations. `min_ratio`, torch's `min_lr`, and `eps` are relative
    to the field's base value. `warmup` and `warmup_init_ratio` are those of every schedule. Evaluations during the
    warmup count. A run replaces the mode `auto` by that of the metric, or refuses it.

    Raises:
        ConfigError: An argument is out of range.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        metric: str,
        mode: Literal["auto", "min", "max"],
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
        check_not_negative(min_ratio=min_ratio, warmup_init_ratio=warmup_init_ratio, patience=patience)
        check_number("factor", factor, above=0, below=1)
        self.metric = metric
        self._warmup, _ = split_run(clock, warmup, 0)
        self.mode = mode
        self._warmup_init_ratio = warmup_init_ratio
        self._optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)  # trains nothing: its lr is the ratio
        torch_mode = "max" if mode == "max" else "min"
        self._torch = ReduceLROnPlateau(
            self._optimizer, torch_mode, factor, patience, threshold, threshold_mode, cooldown, min_ratio, eps
        )

    def __call__(self, update: int) -> float:
        ratio: float = self._optimizer.param_groups[0]["lr"]
        if update >= self._warmup:
            return ratio
        return self._warmup_init_ratio + (ratio - self._warmup_init_ratio) * update / self._warmup

    def observe(self, row: Mapping[str, float]) -> None:
        """Pass the metrics of one evaluation to torch's scheduler."""
        self._torch.step(row[self.metric])

    def state_dict(self) -> dict[str, Any]:
        return {"ratio": self._optimizer.param_groups[0]["lr"], "torch": self._torch.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.param_groups[0]["lr"] = state["ratio"]
        self._torch.load_state_dict(state["torch"])
