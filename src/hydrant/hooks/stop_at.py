"""End a run when a metric is reached, or after a time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from hydrant.clock import Duration
from hydrant.errors import ConfigError, shown
from hydrant.training.early_stopping import Target, parse_target
from hydrant.training.plan import Plan
from hydrant.training.trainer import Trainer


class StopAt:
    """Ends the run at the first evaluation that reaches `metric`, or once it has trained for `time`.

    Args:
        metric: end at the first evaluation that reaches it: `val/accuracy>=0.95` or `val/loss<=0.1`. The evaluation of
            the untrained model does not count.
        time: `90s`, `30min`, `2h` or `1d` of training, over all starts of the run. Rank 0 has the clock. A run that
            ends by the time is no function of its config: on a faster machine it makes more updates.
        every: updates, or another duration, between looks at the clock.

    Raises:
        ConfigError: neither is given, or one is not as above.
    """

    def __init__(self, *, metric: str | None, time: str | None, every: Any) -> None:
        if metric is None and time is None:
            raise ConfigError("metric", "needs a condition such as 'val/accuracy>=0.95', or give time=2h")
        self.every = every
        self._target: Target | None = None if metric is None else parse_target(metric, "metric")
        self._limit = None if time is None else _parse_time(time)
        self._limit_text = time
        self._seconds_before, self._started_at = 0.0, 0.0

    def check(self, plan: Plan) -> None:
        """Check that evaluations give the metric.

        Raises:
            ConfigError: they do not.
        """
        if self._target is not None:
            plan.check_metric("metric", self._target.metric)
            plan.check_evaluates("stop_at waits for evaluations")

    def on_start(self, trainer: Trainer) -> None:
        """Start the clock."""
        del trainer
        self._started_at = time.monotonic()

    def on_evaluation(self, trainer: Trainer, row: Mapping[str, float]) -> None:
        """End the run if the metric is reached."""
        if self._target is not None and row["num_updates"] and self._target.is_reached(row):
            trainer.end(f"stop_at: {self._target.metric} {row[self._target.metric]:g}, {self._target}")

    def after_update(self, trainer: Trainer, num_updates: int) -> None:
        """End the run if its time is over."""
        del num_updates
        if self._limit is None:
            return
        limit = self._limit
        if trainer.plan.world.broadcast_from_rank_zero(lambda: self._seconds() >= limit):
            trainer.end(f"stop_at: {self._limit_text} of training are over")

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self._seconds()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seconds_before = state["seconds"]

    def _seconds(self) -> float:
        return self._seconds_before + time.monotonic() - self._started_at


def _parse_time(text: str) -> float:
    with contextlib.suppress(ConfigError):
        duration = Duration.parse(text, "time")
        if duration.unit == "s":
            return float(duration.amount)
    raise ConfigError("time", f"{shown(text)} is not a time", remedy="write 90s, 30min, 2h or 1d")
