"""The values of expressions whose names are known."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from typing import Any

from hydrant.commands.eject.source_edits import names_of

_PURE = {
    name: getattr(builtins, name)
    for name in ("isinstance", "len", "min", "max", "bool", "str", "int", "float")
}
UNKNOWN: Any = object()
"""The value of an expression that is not known."""


class _Something:
    """Stands for an object that is not None. Everything else about it is unknown."""

    def __bool__(self) -> bool:
        raise TypeError("unknown")

    def __eq__(self, other: object) -> bool:
        raise TypeError("unknown")


SOMETHING = _Something()


def evaluate(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Return the value of an expression of known names and constants, or `UNKNOWN`."""
    if not names_of(node) <= known.keys() | _PURE.keys():
        return UNKNOWN
    code = compile(ast.Expression(node), "<eject>", "eval")
    try:
        return eval(code, {"__builtins__": {}}, {**_PURE, **known})
    except (TypeError, ValueError, AttributeError, KeyError, IndexError):
        return UNKNOWN
