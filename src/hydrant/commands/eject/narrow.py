"""Narrow the annotations of parameters by their known values."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from hydrant.commands.eject.known import SOMETHING
from hydrant.commands.eject.source_edits import Edit, Source

_TYPES: Mapping[str, type] = {
    "None": type(None),
    "int": int,
    "float": float,
    "str": str,
    "bool": bool,
    "Tensor": torch.Tensor,
    "Mapping": dict,
}


def with_narrow_annotations(text: str, known: Mapping[str, Any]) -> str:
    """Return source in which a parameter has, of the types in its annotation, only that of its known value.

    >>> print(with_narrow_annotations("def f(size: int | None) -> None: ...", {"size": 3}))
    def f(size: int) -> None: ...
    """
    source, edits = Source(text), list[Edit]()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.arg) and node.arg in known and isinstance(node.annotation, ast.BinOp):
            fitting = [part for part in _parts(node.annotation) if _fits(part, known[node.arg])]
            if len(fitting) == 1 or (known[node.arg] is SOMETHING and fitting):
                text = " | ".join(source.text_of(part) for part in fitting)
                edits.append(Edit(*source.span(node.annotation), text))
    return source.apply(edits).text


def _parts(annotation: ast.expr) -> Iterator[ast.expr]:
    if isinstance(annotation, ast.BinOp):
        yield from _parts(annotation.left)
        yield from _parts(annotation.right)
    else:
        yield annotation


def _fits(annotation: ast.expr, value: object) -> bool:
    base = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    name = "None" if isinstance(base, ast.Constant) else getattr(base, "id", "")
    return name != "None" if value is SOMETHING else name in _TYPES and type(value) is _TYPES[name]
