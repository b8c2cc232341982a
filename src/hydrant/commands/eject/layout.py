"""The layout of source: imports, literals, and the empty lines between definitions."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any


def import_lines(needed: Mapping[str, tuple[str, str | None]]) -> list[str]:
    """Return sorted import statements: the standard library first."""
    lines: dict[bool, list[str]] = {True: [], False: []}
    plain = sorted({(origin, name) for name, (origin, original) in needed.items() if original is None})
    for origin, name in plain:
        is_standard = origin.partition(".")[0] in sys.stdlib_module_names
        alias = "" if name == origin.partition(".")[0] else f" as {name}"
        lines[is_standard].append(f"import {origin}{alias}")
    by_origin = dict[str, list[str]]()
    for name, (origin, original) in needed.items():
        if original is not None:
            by_origin.setdefault(origin, []).append(original if original == name else f"{original} as {name}")
    for origin in sorted(by_origin):
        is_standard = origin.partition(".")[0] in sys.stdlib_module_names
        names = sorted(by_origin[origin], key=_import_order)
        lines[is_standard].append(f"from {origin} import {', '.join(names)}")
    return [*lines[True], *([""] if lines[True] and lines[False] else []), *lines[False]]


def _import_order(name: str) -> tuple[int, str]:
    """Constants, classes, functions: the order of isort."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    return kind, name


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
        case Fraction():
            return (
                str(value.numerator)
                if value.denominator == 1
                else f"Fraction({value.numerator}, {value.denominator})"
            )
        case list() | tuple():
            items: Sequence[Any] = value
            return f"({', '.join(map(literal, items))}{',' if len(items) == 1 else ''})"
        case dict():
            return "{" + ", ".join(f"{literal(k)}: {literal(v)}" for k, v in value.items()) + "}"
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case _:
            return repr(value)
