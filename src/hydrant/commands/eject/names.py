"""The names in source."""

from __future__ import annotations

import ast


def is_value(text: str) -> bool:
    """Return whether a definition is an assignment."""
    return isinstance(ast.parse(text).body[0], ast.Assign | ast.AnnAssign)


def names_in(source: str | ast.AST) -> set[str]:
    """Return all names in source."""
    tree = ast.parse(source) if isinstance(source, str) else source
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)}


def bound_names(text: str) -> set[str]:
    """Return the names that source binds to values inside functions."""
    nodes = list(ast.walk(ast.parse(text)))
    names = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return names | {n.arg for n in nodes if isinstance(n, ast.arg)}
