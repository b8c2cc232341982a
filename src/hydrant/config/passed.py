"""Config groups that hold an object which the user passes from Python. Imports no torch."""

from collections.abc import Mapping
from typing import Any

from hydrant.errors import ConfigError

PREFIX = "hydrant.training.passed_"
"""The start of their `_target_`; the name of the config group follows."""


def is_passed(config: Mapping[str, Any], group: str) -> bool:
    """Whether a group of a config is an object that was passed from Python."""
    return str(config[group].get("_target_")).startswith(PREFIX)


def check_passed_again(changes: Mapping[str, tuple[Any, Any]]) -> None:
    """Check that a config passes the objects that a saved config has.

    Args:
        changes: the keys in which they differ, with the value in the saved config and in this one.

    Raises:
        ConfigError: an object is missing.
    """
    targets = {key: saved for key, (saved, _) in changes.items() if key.endswith("._target_")}
    groups = [
        key.removesuffix("._target_") for key, saved in targets.items() if str(saved).startswith(PREFIX)
    ]
    if groups:
        raise not_passed({group: changes[f"{group}.type"][0] for group in groups})


def not_passed(class_names: Mapping[str, str]) -> ConfigError:
    """Return the error for a run whose objects of these classes, by config group, are not there."""
    words = ", ".join(f"{group}=..." for group in class_names)
    objects, them = ("an object", "it") if len(class_names) == 1 else ("objects", "them")
    return ConfigError(
        next(iter(class_names)),
        f"this run was trained with {objects} of {', '.join(class_names.values())}, passed from Python",
        remedy=f"only Python can pass {them} again: hydrant.train(config, {words}) continues the run, "
        f"hydrant.load_run(folder, {words}) opens it",
    )
