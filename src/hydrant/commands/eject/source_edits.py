"""Edits of Python source by the positions of its syntax tree, which keep comments and layout."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple


class Edit(NamedTuple):
    """Replaces the characters `[start, end)`."""

    start: int
    end: int
    text: str


class Source:
    """Python source with its syntax tree.

    >>> source = Source("x = f(1)")
    >>> source.text_of(source.tree.body[0].value)
    'f(1)'
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def span(self, node: ast.expr | ast.stmt | ast.arg | ast.keyword) -> tuple[int, int]:
        """Return where a node begins and ends, in characters. A decorated statement begins at its first decorator."""
        first = min([node, *getattr(node, "decorator_list", [])], key=lambda part: part.lineno)
        start = self._offset(first.lineno, first.col_offset) - (first is not node)  # with the @
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return start, self._offset(node.end_lineno, node.end_col_offset)

    def text_of(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def lines_of(self, statement: ast.stmt) -> tuple[int, int]:
        """Return where the lines of a statement begin and end, with the comment lines directly above it."""
        start, end = self.span(statement)
        first = self.text.count("\n", 0, start)
        while first and self._lines[first - 1].lstrip().startswith("#"):
            first -= 1
        return self._starts[first], self._starts[self.text.count("\n", 0, end) + 1]

    def apply(self, edits: Sequence[Edit]) -> Source:
        """Return the source after edits that do not overlap."""
        if not edits:
            return self
        text = self.text
        for edit in sorted(edits, reverse=True):
            text = text[: edit.start] + edit.text + text[edit.end :]
        return Source(text)

    def _offset(self, line: int, column: int) -> int:
        prefix = self._lines[line - 1].encode()[:column].decode() if line <= len(self._lines) else ""
        return self._starts[line - 1] + len(prefix)


def shifted(lines: str, columns: int) -> str:
    """Return lines of code with `columns` fewer spaces before each. Lines of a string with fewer remain."""
    prefix = " " * columns
    return "".join(line.removeprefix(prefix) for line in lines.splitlines(keepends=True))


def replace_calls(text: str, replace: Callable[[ast.Call], str | None]) -> str:
    """Return the source with every call for which `replace` returns another expression."""
    source = Source(text)
    calls = [node for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    edits = [Edit(*source.span(call), new) for call in calls if (new := replace(call)) is not None]
    return source.apply(edits).text


@cache
def is_value(text: str) -> bool:
    """Return whether a definition is an assignment."""
    return isinstance(ast.parse(text).body[0], ast.Assign | ast.AnnAssign)


@cache
def names_in(source: str) -> frozenset[str]:
    """Return all names in source."""
    return frozenset(names_of(ast.parse(source)))


def names_of(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def bound_names(text: str) -> set[str]:
    """Return the names that source binds to values inside functions."""
    nodes = list(ast.walk(ast.parse(text)))
    names = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    return names | {n.arg for n in nodes if isinstance(n, ast.arg)}
