"""End a hopeless run, by a rule about its evaluations."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from typing import Any

from hydrant.errors import ConfigError
from hydrant.training.early_stopping import STOPPED_BY_RULE
from hydrant.training.plan import Plan
from hydrant.training.trainer import Trainer

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
