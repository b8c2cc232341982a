"""What is asked about runs: the options of `hydrant compare` and of `hydrant.compare`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from hydrant.errors import ConfigError
from hydrant.files.plain_values import Positive, check_value, hints_of
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
    mode: Literal["max", "min"] | None = None
    baseline: str | None = None
    target: str | None = None
    against: str | None = None
    sigma: Positive | None = None
    critical: Positive | None = None
    difference: Positive | None = None
    tolerance: Positive | None = None
    tuned: Sequence[str] | None = None

    def __post_init__(self) -> None:
        for name, hint in hints_of(type(self)).items():
            if (value := getattr(self, name)) is not None:
                check_value(f"--{name.replace('_', '-')}", get_args(hint)[0], value)
        _ = self.goal, self.fixed_target  # raise for a text that is no target
        for name, needed in (("critical", "sigma"), ("sigma", "against")):
            if getattr(self, name) is not None and getattr(self, needed) is None:
                raise ConfigError(f"--{name}", needs=f"--{needed} too")

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
