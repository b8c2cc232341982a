"""What a config needs besides the program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Origin = tuple[str, str | None]
"""Where a name comes from: a module, and its name there; None: it is the module."""


@dataclass(frozen=True)
class Constant:
    """A constant at the top of the file."""

    value: str  # as source
    comment: str = ""
    group: str = ""  # the heading under which it stands


@dataclass(frozen=True)
class Written:
    """Source that is written for a config, and where the names in it come from."""

    text: str
    section: str
    imports: Mapping[str, Origin] = field(default_factory=dict[str, Origin])


@dataclass
class Parts:
    """What a config needs besides the program.

    Args:
        constants: by name.
        known: the values that decide branches; those of constants among them.
        written: the definitions that replace those of the module `parts`.
        known_in: further known values inside definitions, by name.
    """

    constants: dict[str, Constant]
    known: dict[str, Any]
    written: dict[str, Written]
    known_in: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    aliases: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    """The definitions that stand for those of the module `parts`: (module, name)."""
    expressions: dict[str, Written] = field(default_factory=dict[str, Written])
    """What stands for calls of functions of the module `parts`."""
