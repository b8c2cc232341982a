"""Turn what a part raises about its arguments into errors that name the config key."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from hydra.errors import HydraException

from hydrant.config.user_errors import is_in_user_code, place
from hydrant.errors import ConfigError, HydrantError, first_line, typed_line

_ARGUMENT_ERRORS = (HydraException, TypeError, ValueError, RuntimeError, AssertionError, LookupError,
                    AttributeError, ArithmeticError, OSError)  # fmt: skip
"""The errors by which third-party code rejects arguments. Errors of other types are shown with their type and line."""

_BUGS = (TypeError, LookupError, AttributeError, ArithmeticError)
"""Errors that user code seldom raises on purpose."""


@contextmanager
def as_config_error(key: str, node: Mapping[str, Any]) -> Generator[None]:
    """Re-raise an exception of the part at `key`, whose config is `node`, as a ConfigError. Also a decorator.

    Raises:
        HydrantError: the part raised it. Another error of the part becomes a ConfigError with its message.
    """
    try:
        yield
    except HydrantError:
        raise
    except Exception as error:  # a user's part may raise anything
        root: BaseException = error
        while root.__cause__ is not None and not isinstance(root, HydrantError):
            root = root.__cause__
        if isinstance(root, HydrantError):
            raise root from error
        text = first_line(root)
        is_bug = isinstance(root, _BUGS) and is_in_user_code(root)
        if is_bug or not isinstance(root, _ARGUMENT_ERRORS):
            text = f"{typed_line(root)} (at {place(root)})"
        rejected = rejected_key(key, node, text)
        remedy = f"give {rejected} another value" if rejected != key else ""
        raise ConfigError(rejected, f"{node['_target_']} refuses it: {text}", remedy=remedy) from error


@contextmanager
def prefix_error_keys(prefix: str, settings: Mapping[str, Any]) -> Generator[None]:
    """Put `prefix`, such as `optimizers.critic.`, before the key of a ConfigError about one of these settings.

    Raises:
        ConfigError: the one raised inside, with the longer key.
    """
    try:
        yield
    except ConfigError as error:
        if error.key.partition(".")[0] in settings:
            raise ConfigError(f"{prefix}{error.key}", error.reason, remedy=error.remedy) from error
        raise


def rejected_key(key: str, node: Mapping[str, Any], message: str) -> str:
    """Return the config key of the argument that `message` rejects.

    It is the argument that the message names; else the only one whose value it ends with; else `key`.

    >>> rejected_key("optimizer", {"lr": -1, "eps": 1e-8}, "Invalid learning rate: -1")
    'optimizer.lr'
    """
    arguments = {name: value for name, value in node.items() if not name.startswith("_")}
    words = set(re.findall(r"\w+", message))
    named = [name for name in arguments if name in words]
    rejected_value = message.rpartition(":")[2].strip().rstrip(".")
    with_value = [name for name, value in arguments.items() if rejected_value in _text_forms(value)]
    matches = named if len(named) == 1 else with_value
    return f"{key}.{matches[0]}" if len(matches) == 1 else key


def _text_forms(value: Any) -> list[str]:
    """Return the texts that a message may contain for a value: all of it, or one entry of a list."""
    return [str(value), *(map(str, value) if isinstance(value, list) else ())]
