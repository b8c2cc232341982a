"""Config groups that hold an object which the user passes from Python. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydrant.errors import ConfigError

PREFIX = "hydrant.training.passed_"
"""The start of their `_target_`; the name of the config group follows."""


def check_passed_again(changes: Mapping[str, tuple[Any, Any]]) -> None:
    """Check that a config passes the objects that a saved config has.

    Args:
        changes: the keys in which they differ, with the value in the saved config and in this one.

    Raises:
        ConfigError: an object is missing.
    """
    for key, (saved, _) in changes.items():
        if key.endswith("._target_") and str(saved).startswith(PREFIX):
            group = key.removesuffix("._target_")
            raise not_passed(group, changes[f"{group}.type"][0])


def not_passed(group: str, class_name: str) -> ConfigError:
    """Return the error for a run whose object of this class is not there."""
    return ConfigError(
        group,
        f"this run was trained with an object of {class_name}, passed from Python; only Python can pass it again: "
        f"hydrant.train(config, {group}=...) continues the run, hydrant.load_run(folder, {group}=...) opens it",
    )
