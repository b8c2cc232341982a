"""The best evaluation, and the early end of a run: too long without a better one, or by the pruner of a study."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hydrant.clock import Interval
from hydrant.errors import ConfigError

STOPPED_BY_RULE = "stop_if: "
"""How the end reason of a run begins that is `stopped`, not finished."""


@dataclass(frozen=True)
class Target:
    """A value that a metric should reach."""

    metric: str
    value: float
    mode: str  # "max": at least the value; "min": at most

    def __str__(self) -> str:
        return f"{self.metric}{'>=' if self.mode == 'max' else '<='}{self.value:g}"

    def is_reached(self, row: Mapping[str, float]) -> bool:
        """Return whether the metrics of a row reach the value."""
        value = row.get(self.metric, math.nan)
        return value >= self.value if self.mode == "max" else value <= self.value


def parse_target(text: str, key: str) -> Target:
    """Parse a target such as `val/accuracy>=0.95`; `key` names it in the error.

    Raises:
        ConfigError: the text is not a target.
    """
    match = re.fullmatch(r"(.+?)(>=|<=)\s*([-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?)\s*", text, re.IGNORECASE)
    if match is None:
        remedy = "write one in quotes: 'val/accuracy>=0.95' or 'val/loss<=0.1'"
        raise ConfigError(key, f"{text!r} is not a target", remedy=remedy)
    return Target(match[1].strip(), float(match[3]), "max" if match[2] == ">=" else "min")


@dataclass(frozen=True)
class EarlyStopping:
    """The metric that chooses the best checkpoint and may end a run early.

    `best` is the best evaluation so far (`metric`, `value`, `num_updates`), or None before the first one.
    """

    metric: str
    mode: str  # "max" or "min"
    patience: int | None  # evaluations in a row without a new best that end the run
    eval_every: Interval

    @property
    def judges_by(self) -> list[str]:
        """The metric and the mode, as checkpoints hold them."""
        return [self.metric, self.mode]

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

    def best_of(self, rows: Iterable[Mapping[str, float]]) -> dict[str, Any] | None:
        """Return the best of these rows, None if there is none. The untrained model does not count."""
        best: dict[str, Any] | None = None
        for row in rows:
            if num_updates := int(row["num_updates"]):
                best = self.improved(best, row, num_updates) or best
        return best

    def has_stalled(self, best: Mapping[str, Any] | None, num_updates: int, since: int = 0) -> bool:
        """Return whether `patience` evaluations have followed the best one, or the update `since` without one.

        Depends on its arguments only.
        """
        if self.patience is None:
            return False
        best_at = since if best is None else best["num_updates"]
        return self.eval_every.count(num_updates) - self.eval_every.count(best_at) >= self.patience
