"""Refuse arguments with which a library would read a file or download one, because these may contain code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hydrant.errors import ConfigError

_LOADED = re.compile(
    r"(?!.*drop_path)(.*_)?(path|dir|folder|file|filename|url|uri|checkpoint)s?|pretrained_cfg.*"
)
"""The names of such arguments. Those like `drop_path` are ratios."""


def check_loads_nothing(key: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments for a library that name a file or an address. `key` is the config key of the arguments.

    Raises:
        ConfigError: Names the key.
    """
    for name, value in arguments.items():
        if _LOADED.fullmatch(str(name)) and not isinstance(value, bool | int | float | None):
            message = "is not allowed, because the library would load what it names"
            raise ConfigError(f"{key}.{name}", f"{message}; to load weights, use init_from")
