"""What is asked about runs: the options of `hydrant compare` and of `hydrant.compare`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hydrant.checks import unknown_name
from hydrant.errors import ConfigError
from hydrant.training.early_stopping import Target, parse_target


@dataclass(frozen=True, kw_only=True)
class Question:
    """Each field is named like its option. `hydrant.compare` explains them.

    Raises:
        ConfigError: a number or a target is impossible, or an option is given without another one that it needs.
    """

    by: Sequence[str] | None = None
    best_over: Sequence[str] | None = None
    metric: str | None = None
    mode: str | None = None
    baseline: str | None = None
    target: str | None = None
    price_per_hour: float | None = None
    against: str | None = None
    sigma: float | None = None
    critical: float | None = None
    difference: float | None = None
    tolerance: float | None = None
    tuned: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.mode not in (None, "max", "min"):
            raise unknown_name("mode", "mode", self.mode, ["max", "min"])
        price = self.price_per_hour
        if price is not None and not (math.isfinite(price) and price >= 0):
            message = f"{price:g} is not a price"
            raise ConfigError("--price-per-hour", message, remedy="give what one run costs per hour")
        _ = self.goal, self.fixed_target  # raise for a text that is no target
        for name in ("sigma", "critical", "difference", "tolerance"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"--{name}", needs="a number above 0", got=value)
        if self.sigma is not None and self.against is None:
            message = "is the noise of a test against a target"
            raise ConfigError("--sigma", message, remedy="add --against 'val/loss<=3.28'")
        if self.critical is not None and self.sigma is None:
            raise ConfigError("--critical", "has a level only if the noise is known", remedy="add --sigma")

    @property
    def varied(self) -> list[str]:
        """The keys in which the runs of a folder may differ."""
        return [*(self.by or ()), *(self.best_over or ())]

    @property
    def goal(self) -> Target | None:
        """The value of `target`, until which times are measured."""
        return None if self.target is None else parse_target(self.target, "--target")

    @property
    def fixed_target(self) -> Target | None:
        """The value of `against`, which means are tested against."""
        return None if self.against is None else parse_target(self.against, "--against")
