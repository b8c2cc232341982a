"""What parts raise about their arguments, as errors that name the config key."""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from hydra.errors import HydraException

from hydrant.errors import ConfigError, HydrantError, first_line, location, typed_line

REFUSALS = (
    HydraException,
    TypeError,
    ValueError,
    RuntimeError,
    AssertionError,
    LookupError,
    AttributeError,
    ArithmeticError,
    OSError,
)
"""What third parties raise for arguments they do not like."""


@contextmanager
def refusals(key: str, config: Mapping[str, Any]) -> Generator[None]:
    """Turn what the part at `key` raises into a ConfigError; `config` holds it, or is its node.

    Raises:
        HydrantError: the part's own, or a ConfigError in the part's words.
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
        node, text = config.get(key, config), first_line(root)
        if not isinstance(root, REFUSALS):
            text = f"{typed_line(root)} (at {location(root)})"
        raise ConfigError(blamed(key, node, text), f"{node['_target_']} refuses it: {text}") from error


def blamed(key: str, node: Mapping[str, Any], message: str) -> str:
    """The key of the argument that a part complains of: the one it names, or the only one of the given value.

    >>> blamed("optimizer", {"lr": -1, "eps": 1e-8}, "Invalid learning rate: -1")
    'optimizer.lr'
    """
    words = set(re.findall(r"\w+", message))
    named = [name for name in node if name in words and not name.startswith("_")]
    given = message.rpartition(":")[2].strip().rstrip(".")
    valued = [name for name, value in node.items() if given in _written(value) and not name.startswith("_")]
    found = named if len(named) == 1 else valued
    return f"{key}.{found[0]}" if len(found) == 1 else key


def _written(value: Any) -> list[str]:
    return [str(value), *(map(str, value) if isinstance(value, list) else ())]
