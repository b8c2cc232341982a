"""Overrides and defaults lists as Hydra needs them.

Several options of one group at once: `tracker=[wandb,tensorboard]`, or `override /tracker: [...]` in a config file.

Hydra merges the options of such a list into one node, in which each overwrites the keys of the one before. So the first
option stays at the group's own key, with its usual keys (`tracker.project`), and every further option is composed at a
key of its own (`trackers.tensorboard.flush_seconds`), as `+tracker@trackers.tensorboard=tensorboard` does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException

from hydrant.errors import ConfigError, shown
from hydrant.files.bounded_yaml import TEXT_KEYS

PLURALS = {"tracker": "trackers"}
"""The groups of which a run takes several options, and the key of the second and all further ones."""


SCHEME = "hydrant"
"""Of folders on Hydra's search path whose files `file_source` reads."""
_SEARCH_PATH = "hydra.searchpath"

_NUMBER = re.compile(r"[-+]?[\d._]+(e[-+]?[\d_]+)?", re.IGNORECASE)
"""Everything that Hydra's grammar reads as a number, and some other texts."""


def expand_lists(overrides: Sequence[str]) -> list[str]:
    """Return the overrides with one option each, for Hydra. An override that cannot be parsed is returned as it is.

    A name that looks like a number is put in quotes, so that it stays as it was typed.

    >>> expand_lists(["tracker=[wandb,tensorboard]", "seed=1", "name=1e5"])
    ['tracker=wandb', '+tracker@trackers.tensorboard=tensorboard', 'seed=1', "name='1e5'"]

    Raises:
        ConfigError: The list is empty, or names an option twice.
    """
    return [word for text in overrides for word in _expanded(text)]


def _expanded(text: str) -> list[str]:
    group, _, value = text.partition("=")
    if group.lstrip("+").rpartition(".")[2] in TEXT_KEYS and _NUMBER.fullmatch(value):
        return [f"{group}='{value}'"]
    if group not in (*PLURALS, _SEARCH_PATH) or not value.lstrip().startswith("["):
        return [text]
    try:
        names = OverridesParser.create().parse_override(text).value()
    except (HydraException, RecursionError):  # `check_overrides` reports it
        return [text]
    if group == _SEARCH_PATH:
        items = names if isinstance(names, list) else []  # Hydra says what is wrong with another value
        paths = [QuotedString(str(with_limits(path)), Quote.single).with_quotes() for path in items]
        return [f"{group}=[{','.join(paths)}]" if items else text]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(
            group, f"needs one or more options, not {value}", remedy=f"write {group}=[wandb,tensorboard]"
        )
    first, *others = _checked(group, list(map(str, names)))
    return [f"{group}={first}", *(f"+{group}@{PLURALS[group]}.{name}={name}" for name in others)]


def with_limits(path: Any) -> Any:
    """Return an entry of Hydra's search path so that `file_source` reads it, if it is a folder.

    >>> with_limits("file:///conf"), with_limits("conf"), with_limits("pkg://conf")
    ('hydrant:///conf', 'hydrant://conf', 'pkg://conf')
    """
    is_folder = isinstance(path, str) and (path.startswith("file://") or "://" not in path)
    return f"{SCHEME}://{path.removeprefix('file://')}" if is_folder else path


def expand_defaults(defaults: Sequence[Any]) -> list[Any]:
    """Return the defaults list of a config file with one option each, for Hydra.

    >>> expand_defaults(["_self_", {"override /tracker": ["wandb", "tensorboard"]}])
    ['_self_', {'/tracker@_global_.trackers.tensorboard': 'tensorboard'}, {'override /tracker': 'wandb'}]

    Raises:
        ConfigError: The list is empty, or names an option twice.
    """
    firsts: list[Any] = []
    others: list[Any] = []
    for entry in defaults:
        group, options = next(iter(entry.items())) if isinstance(entry, dict) else (entry, None)
        name = group.rpartition(" ")[2].removeprefix("/")  # without `override`
        if name in PLURALS and isinstance(options, list):
            first, *more = _checked(name, list(map(str, options)))
            firsts.append({group: first})
            others += [{f"/{name}@_global_.{PLURALS[name]}.{option}": option} for option in more]
        else:
            firsts.append(entry)
    is_override = [isinstance(entry, dict) and next(iter(entry)).startswith("override ") for entry in firsts]
    position = is_override.index(True) if True in is_override else len(firsts)  # Hydra wants overrides last
    return [*firsts[:position], *others, *firsts[position:]]


def _checked(group: str, names: list[str]) -> list[str]:
    if not names:
        raise ConfigError(
            group, "needs one or more options, not []", remedy=f"write {group}=[wandb,tensorboard]"
        )
    if len(set(names)) < len(names):
        raise ConfigError(group, f"{shown(names)} names an option twice", remedy="name each once")
    return names
