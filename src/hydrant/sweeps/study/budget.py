"""The budget of a study: limits in runs, updates, wall seconds and processor seconds, and what the study has used."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from hydrant.errors import ConfigError, shown

RUNS, UPDATES, WALL, CPU = "runs", "updates", "wall_seconds", "cpu_seconds"

_UNITS: Mapping[str, tuple[str, float]] = {
    "run": (RUNS, 1), "runs": (RUNS, 1), "update": (UPDATES, 1), "updates": (UPDATES, 1),
    "s": (WALL, 1), "min": (WALL, 60), "h": (WALL, 3600),
    "cpu-s": (CPU, 1), "cpu-min": (CPU, 60), "cpu-h": (CPU, 3600),
}  # fmt: skip

_NAMES = {RUNS: "runs", UPDATES: "updates", WALL: "seconds", CPU: "processor seconds"}

Amounts = Mapping[str, float]
"""How much of each: `RUNS`, `UPDATES`, `WALL`, `CPU`."""


@dataclass(frozen=True)
class Budget:
    """The limits of a study. A resource without a limit is not in it."""

    limits: Amounts

    def describe(self) -> str:
        """Return the limits in words.

        >>> read_budget("40runs,10min").describe()
        '40 runs and 600 seconds'
        """
        return " and ".join(f"{limit:,g} {_NAMES[name]}" for name, limit in self.limits.items())

    def num_affordable(self, used: Amounts, cost: Amounts, share: float = 1.0) -> float:
        """Return how many runs may begin; infinity if nothing limits them.

        Args:
            used: by the study.
            cost: of a run, as expected; 0 where it is unknown.
            share: of the budget that may be used.
        """
        return min((self._num_runs(name, used, cost, share) for name in self.limits), default=math.inf)

    def lets_continue(self, used: Amounts) -> bool:
        """Whether runs that have begun may continue: they count as runs already, but cost updates and time."""
        return all(used[name] < limit for name, limit in self.limits.items() if name != RUNS)

    @property
    def needs_measuring(self) -> bool:
        """Whether only a run tells how many fit."""
        return any(name != RUNS for name in self.limits)

    def enlarged(self, used: Amounts, cost: Amounts, num: int) -> Budget:
        """Return a budget that lets so many more runs begin, with a tenth more of what only a run can tell.

        Where the cost of a run is unknown, it is three times what was used: starting alone has used up the limit.

        Args:
            num: the runs.
        """
        needed = {
            name: used[name] + num * cost[name] * (1.0 if name == RUNS else 1.1)
            if cost[name]
            else 3 * used[name]
            for name in self.limits
        }
        return Budget(
            {name: max(limit, _round_up(name, needed[name])) for name, limit in self.limits.items()}
        )

    def words(self) -> str:
        """Return these limits as `read_budget` reads them.

        >>> read_budget("40runs,600s,90cpu-s").words()
        '40runs,10min,90cpu-s'
        """
        return ",".join(_written(name, limit) for name, limit in self.limits.items())

    def _num_runs(self, name: str, used: Amounts, cost: Amounts, share: float) -> float:
        left = self.limits[name] * share - used[name]
        if left <= 0:
            return 0
        return math.inf if cost[name] == 0.0 else left / cost[name]


def _round_up(name: str, amount: float) -> float:
    size = 60 if name in (WALL, CPU) and amount > 60 else 1
    return float(math.ceil(amount / size) * size)


def _written(name: str, limit: float) -> str:
    units = [(size, unit) for unit, (kind, size) in _UNITS.items() if kind == name]
    size, unit = max((own for own in units if limit % own[0] == 0), default=units[0])
    return f"{limit / size:.15g}{unit}"


def read_budget(text: str | None) -> Budget:
    """Return the budget that a text such as `40runs,10min` describes.

    Raises:
        ConfigError: it has an unknown unit, no amount above 0, or a part of a run.
    """
    limits = dict[str, float]()
    for part in [] if text is None else text.split(","):
        found = re.fullmatch(r"\s*([\d.,e+]+)\s*([a-z-]+)\s*", part)
        try:
            amount = float(found[1]) if found else math.nan
        except ValueError:
            amount = math.nan
        if found is None or found[2] not in _UNITS or not 0 < amount < math.inf:
            remedy = "write 40runs, 5000updates, 10min or 10cpu-min, or several: 40runs,10min"
            message = f"{shown(part)} is no budget; {remedy}"
            raise ConfigError("hydra.sweeper.budget", message)
        name, factor = _UNITS[found[2]]
        if name in limits:
            raise ConfigError("hydra.sweeper.budget", f"{shown(text)} has two limits of {_NAMES[name]}")
        if name in (RUNS, UPDATES) and not amount.is_integer():
            raise ConfigError("hydra.sweeper.budget", f"{shown(part)} needs a whole number of {_NAMES[name]}")
        limits[name] = amount * factor
    return Budget(limits)
