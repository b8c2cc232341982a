"""Drop operands that change nothing: `x**1`, `1 * x`, `0 + x`."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from hydrant.commands.eject.known import evaluate
from hydrant.commands.eject.source_edits import Edit, Source


def without_neutral(text: str, known: Mapping[str, Any]) -> str:
    """Return source without the operands of floats that are neutral for the known values.

    >>> print(without_neutral("y = low + (1.0 - low) * f(x**power)", {"low": 0.0, "power": 1.0}))
    y = f(x)
    """
    source = Source(text)
    while (edit := _edit(source, known)) is not None:
        source = source.apply([edit])
    return source.text


def _edit(source: Source, known: Mapping[str, Any]) -> Edit | None:
    for parent in ast.walk(source.tree):
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.BinOp) and (kept := _kept(node, known)) is not None:
                text = source.text_of(kept)
                is_inside = isinstance(kept, ast.BinOp | ast.IfExp) and isinstance(parent, ast.BinOp)
                return Edit(*source.span(node), f"({text})" if is_inside else text)
    return None


def _kept(node: ast.BinOp, known: Mapping[str, Any]) -> ast.expr | None:
    """Return the operand that is the value of an operation; None if the other one is not neutral."""
    left, right = (_number(operand, known) for operand in (node.left, node.right))
    match node.op:
        case ast.Add() if left == 0:
            return node.right
        case ast.Add() | ast.Sub() if right == 0:
            return node.left
        case ast.Mult() if left == 1:
            return node.right
        case ast.Mult() | ast.Div() | ast.Pow() if right == 1:
            return node.left
        case _:
            return None


def _number(node: ast.expr, known: Mapping[str, Any]) -> float | None:
    """Return the value of an operand that names have; None if it is a number in the source, or unknown."""
    if not any(isinstance(part, ast.Name) for part in ast.walk(node)):
        return None
    value = evaluate(node, known)
    return value if type(value) in (int, float) else None
