"""Jobs that are the same program: they differ only in values that training reads as numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydrant.config.flat import flatten

_ANY_VALUE = ("seed", "name", "claim", "tags", "notes", "init_from", "init_strict", "patience", "max_skipped", "resume",
              "max_grad_norm", "max_grad_value")  # fmt: skip
"""Keys in which the lanes of a stack may differ."""

_ANY_GROUPS = ("scheduler.", "schedules.")
"""Groups in which the lanes may differ in any key."""

_DURATIONS_OF_AVERAGES = ("averaging.start_after", "averaging.start", "averaging.every")

_FRACTIONS = ("averaging.", "optimizer.", "optimizers.", "task.", "model.", "param_groups.")
"""Groups in which the lanes may differ in fractions."""


def program_of(config: Mapping[str, Any]) -> str:
    """Return a text that is equal for configs that may be the same program.

    >>> one, other = {"seed": 0, "optimizer": {"lr": 0.1}}, {"seed": 1, "optimizer": {"lr": 0.2}}
    >>> program_of(one) == program_of(other) != program_of({"seed": 0, "optimizer": {"lr": 0.1, "nesterov": True}})
    True
    """
    kept = {key: _without_fractions(key, value) for key, value in flatten(config).items()}
    return repr(sorted((key, value) for key, value in kept.items() if value is not ...))


def _without_fractions(key: str, value: Any) -> Any:
    """Return the values that must be equal in the lanes of a stack; `...` for a value that may differ."""
    if key in _ANY_VALUE:
        return None if value is None and key.startswith("max_grad") else ...
    if key.startswith(_ANY_GROUPS):
        return ...
    if key in _DURATIONS_OF_AVERAGES:
        return ...
    if key.startswith(_FRACTIONS):
        if isinstance(value, list):
            return [float if isinstance(item, float) else item for item in value]
        return float if isinstance(value, float) else value
    return value
