"""The user's questions beyond the means: a fixed target, a difference, a tolerance, tuned keys and sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hydrant.errors import ConfigError
from hydrant.training.early_stopping import Target


@dataclass(frozen=True)
class Questions:
    """The options of the verdicts. Each is named like its option of the command.

    Raises:
        ConfigError: a number is impossible, or an option lacks the one that it belongs to.
    """

    against: Target | None = None  # the fixed target of a test
    sigma: float | None = None  # the known standard deviation of a run, for this test
    critical: float | None = None  # the value that `margin * sqrt(n)` must reach, instead of a level of 5 %
    difference: float | None = None  # the difference whose number of seeds is asked for
    tolerance: float | None = None  # how much worse a result in the basin of a learning rate may be
    tuned: Sequence[str] | None = (
        None  # the keys whose values are trials; None: those of optimizers and schedules
    )
    scale: str | None = None  # the size for a scaling law: parameters, compute or a key

    def __post_init__(self) -> None:
        for name in ("sigma", "critical", "difference", "tolerance"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ConfigError(f"--{name}", f"needs a number above 0, not {value:g}")
        if self.sigma is not None and self.against is None:
            raise ConfigError(
                "--sigma", "is the noise of a test against a target; add --against 'val/loss<=3.28'"
            )
        if self.critical is not None and self.sigma is None:
            raise ConfigError("--critical", "has a level only if the noise is known; add --sigma")
