"""End a run when a metric is reached, after a time, or by a rule about its evaluations."""

import contextlib
import math
import operator
import re
import time
from collections.abc import Mapping
from typing import Any

from hydrant.clock import Duration
from hydrant.errors import ConfigError, shown
from hydrant.training.early_stopping import STOPPED_BY_RULE, Target, parse_target
from hydrant.training.trainer import Plan, Trainer


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
            raise ConfigError("metric", needs="a condition such as 'val/accuracy>=0.95', or give time=2h")
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


_COMPARE = {">": operator.gt, "<": operator.lt, ">=": operator.ge, "<=": operator.le}
_RULE = re.compile(r"\s*([^\s<>=]+)\s*(>=|<=|>|<)\s*([^\s<>=]+)(?:\s+after\s+(\S+))?\s*")


class StopIf:
    """Ends the run at the first evaluation for which the rule holds. The run is `stopped`, not finished.

    A metric that is NaN or infinite is hopeless too. All ranks have the same metrics, so they agree.

    Args:
        rule: `val/loss > 5 after 200` ends it if `val/loss` is above 5 after 200 updates or more. The duration may
            be any, such as `2ep` or `10%`; without it, the rule holds from the first update on. Also `<`, `>=`, `<=`.

    Raises:
        ConfigError: the rule is not as above.
    """

    def __init__(self, *, rule: str) -> None:
        match = _RULE.fullmatch(rule)
        try:
            if match is None:
                raise ValueError
            self._value = float(match[3])
        except ValueError:
            raise ConfigError(
                "rule", f"{rule!r} is no rule", remedy="write 'val/loss > 5 after 200'"
            ) from None
        self._rule = " ".join(rule.split())
        self._metric, self._sign, self._after = match[1], match[2], match[4]
        self._first = 1

    def check(self, plan: Plan) -> None:
        """Check that evaluations give the metric, and compute from which update on the rule counts.

        Raises:
            ConfigError: they do not, or `after` is no duration.
        """
        plan.check_metric("rule", self._metric, "reads evaluations only, and none gives")
        plan.check_evaluates("stop_if waits for evaluations")
        if self._after is not None:
            after: Any = int(self._after) if self._after.isdigit() else self._after
            self._first = max(plan.clock.updates(after, "rule"), 1) if after != 0 else 1

    def on_evaluation(self, trainer: Trainer, row: Mapping[str, float]) -> None:
        """End the run if the rule holds."""
        value = row.get(self._metric)
        if value is None or row["num_updates"] < self._first:
            return
        if not math.isfinite(value) or _COMPARE[self._sign](value, self._value):
            trainer.end(f"{STOPPED_BY_RULE}{self._metric} {value:g} ({self._rule})")
