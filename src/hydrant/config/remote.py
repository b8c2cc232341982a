"""Overrides that the user did not write: from a server, or from the folder of an earlier run.

The words of a command line are the user's consent: they may allow code, and name folders and receivers. Overrides from
elsewhere become words of a command line too, so they are checked first.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

from hydrant.config.command_line import check_overrides
from hydrant.errors import ConfigError, shown
from hydrant.files.plain_values import children
from hydrant.safety.consent import RECEIVERS

CONSENT_KEYS = ("hydra", "allow_targets", *(f"tracker.{key}" for key in RECEIVERS))
"""Keys that decide which code runs and who receives the results: only the user may set them."""

_NO_HYPERPARAMETERS = (*CONSENT_KEYS, "tracker", "trackers", "resume", "compile.cache_dir", "compile.options")
"""Keys that a server may not set: besides those above, they name files, uploads and compilers."""

_NOT_BY_A_SERVER = "a server may not set it; remove it from the sweep, or give it on the command line"

_KEY = re.compile(r"[A-Za-z]\w*([./@]\w+)*")
_ELSEWHERE = re.compile(r"/|~|.*(\.\./|\.\.$|://|\$\{)", re.DOTALL)
"""Values that are a path out of the current folder, an address or an interpolation."""


def remote_overrides(values: Mapping[str, Any]) -> list[str]:
    """Return the overrides for hyperparameters that a server has chosen, by config key.

    Raises:
        ConfigError: A key is not that of a hyperparameter, or a value is a path out of this folder, an address or an
            interpolation.
    """
    words = [f"{key}={value if isinstance(value, str) else shown(value)}" for key, value in values.items()]
    for key, word in zip(values, words, strict=True):
        if not _KEY.fullmatch(key):
            raise ConfigError(key, f"is not a key of a run's config, so {_NOT_BY_A_SERVER}")
        check_overrides([word])
        override = OverridesParser.create().parse_override(word)
        if override.is_sweep_override():
            raise ConfigError(key, f"needs one value, not {shown(values[key])}, from the server")
        for inner_key, value in _leaves(override.value(), key):
            if _lies_under(inner_key, _NO_HYPERPARAMETERS) or "._" in inner_key:
                raise ConfigError(inner_key, f"is no hyperparameter, so {_NOT_BY_A_SERVER}")
            if isinstance(value, str) and _ELSEWHERE.match(value):
                message = f"{shown(value)} is a path out of this folder, an address or an interpolation"
                raise ConfigError(inner_key, f"{message}, so {_NOT_BY_A_SERVER}")
    return words


def check_recorded(overrides: Iterable[str], words: Collection[str]) -> None:
    """Refuse overrides recorded in a run folder that need the consent of the user and are not among their `words`.

    Raises:
        ConfigError: Names the key.
    """
    for override in overrides:
        key = override.partition("=")[0].lstrip("+~")
        if override not in words and (not _KEY.match(key) or _lies_under(key, CONSENT_KEYS)):
            message = "is recorded in a run folder, which cannot consent to it"
            raise ConfigError(key, f"{message}; if you trust it, add {override!r} to the command line")


def _lies_under(key: str, keys: Iterable[str]) -> bool:
    """Whether a key is one of these keys, lies in one, or places a config in one (`group@key`).

    `trackers.<name>.entity` counts as `tracker.entity`.
    """
    key = re.sub(r"^trackers\.[^.@/]+\.", "tracker.", key)
    return any(re.match(rf"(.*@)?{re.escape(k)}([./@]|$)", key) for k in keys)


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of a value and of everything in it."""
    yield key, value
    for inner_key, inner in children(value, key):
        yield from _leaves(inner, inner_key)
