"""The layout of source: imports, literals, and the empty lines between definitions."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from keyword import iskeyword
from typing import Any

from hydrant.commands.eject.parts import Origin
from hydrant.errors import ConfigError, shown


def import_lines(needed: Mapping[str, Origin]) -> list[str]:
    """Return import statements, one for each name."""
    lines = list[str]()
    for name, (origin, original) in needed.items():
        start = f"import {origin}" if original is None else f"from {origin} import {original}"
        bound = original or origin.partition(".")[0]
        lines.append(start if name == bound else f"{start} as {name}")
    return lines


def joined(texts: Sequence[str]) -> str:
    """Return definitions one after the other: two empty lines between functions and classes, none between constants."""
    joined, was_block = "", False
    for text in texts:
        is_block = isinstance(ast.parse(text).body[0], ast.FunctionDef | ast.ClassDef)
        joined += ("\n\n" if joined and (is_block or was_block) else "") + text.strip("\n") + "\n"
        was_block = is_block
    return joined


def literal(value: Any) -> str:
    """Return a value as source: tuples for lists, exact fractions."""
    match value:
        case Fraction() if value.denominator == 1:
            return str(value.numerator)
        case list() | tuple():
            items: Sequence[Any] = value
            return f"({', '.join(map(literal, items))}{',' if len(items) == 1 else ''})"
        case dict():
            return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
        case str():
            return '"' + escaped(value).replace('"', '\\"') + '"'
        case float() if not math.isfinite(value):
            return f'float("{value}")'
        case _:
            return repr(value)


def pattern_literal(pattern: str) -> str:
    """Return a regular expression as source, with its backslashes as they are, if that is possible."""
    is_plain = "\\" in pattern and pattern.isprintable() and '"' not in pattern and not pattern.endswith("\\")
    return f'r"{pattern}"' if is_plain else literal(pattern)


def docstring(text: str) -> str:
    """Return a text as a docstring, with its lines."""
    lines = "\n".join(map(escaped, text.split("\n")))
    if '"""' in lines or lines.endswith('"'):
        lines = lines.replace('"', '\\"')
    return f'"""{lines}"""'


def comment(text: str) -> str:
    """Return a text as a comment, which ends with its line."""
    return f"# {escaped(text)}" if text else ""


def escaped(text: str) -> str:
    """Return a text with a backslash in front of those that it has, and escapes for what cannot be printed."""
    return "".join(c if c in "'\"" else repr(c)[1:-1] for c in text)


def keyword(name: object, value: str) -> str:
    """Return an argument of a call.

    Raises:
        ConfigError: its name, a key of the config, is no name of Python.
    """
    return f"{check_name(name)}={value}"


def check_name(name: object) -> str:
    """Return the name of an argument or a definition that is made of a key of the config.

    Raises:
        ConfigError: it is no name of Python.
    """
    if not isinstance(name, str) or not name.isidentifier() or iskeyword(name):
        message = f"{shown(name)} cannot be a name in a program; use letters, digits and '_' in this key"
        raise ConfigError("eject", message)
    return name
