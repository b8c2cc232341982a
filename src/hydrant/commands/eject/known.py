"""The values of expressions whose names are known."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Mapping
from typing import Any

_PURE = {
    name: getattr(builtins, name)
    for name in ("isinstance", "len", "min", "max", "bool", "str", "int", "float")
}
UNKNOWN: Any = object()
"""The value of an expression that is not known."""


class _Something:
    """Stands for an object that is not None. Everything else about it is unknown."""

    def __repr__(self) -> str:
        return "something"

    def __bool__(self) -> bool:
        raise TypeError("unknown")

    def __eq__(self, other: object) -> bool:
        raise TypeError("unknown")

    def __hash__(self) -> int:
        return 0


SOMETHING = _Something()


def evaluate(node: ast.expr, known: Mapping[str, Any]) -> Any:
    """Return the value of an expression of known names and constants, or `UNKNOWN`."""
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    allowed = (
        ast.Name,
        ast.Constant,
        ast.Compare,
        ast.BoolOp,
        ast.UnaryOp,
        ast.BinOp,
        ast.Tuple,
        ast.List,
        ast.Set,
    )
    helpers = (
        ast.Load,
        ast.cmpop,
        ast.boolop,
        ast.unaryop,
        ast.operator,
        ast.Call,
        ast.Subscript,
        ast.Attribute,
    )
    if not names <= known.keys() | _PURE.keys():
        return UNKNOWN
    if any(not isinstance(part, (*allowed, *helpers)) for part in ast.walk(node)):
        return UNKNOWN
    try:
        return eval(
            compile(ast.Expression(node), "<eject>", "eval"), {"__builtins__": {}}, {**_PURE, **known}
        )
    except (TypeError, ValueError, AttributeError, KeyError, IndexError):
        return UNKNOWN
