"""Simplify source for a config: decide its branches by known values, and drop what can no longer be reached.

Known values only decide. They are not written into the source, where their names say more.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from hydrant.commands.eject.couplings import CHECKS, ERRORS, WITH_EFFECTS
from hydrant.commands.eject.known import UNKNOWN, evaluate
from hydrant.commands.eject.source_edits import Edit, Source, shifted


def fold(text: str, known: Mapping[str, Any]) -> str:
    """Return the source of definitions in which every branch that `known` decides is resolved.

    >>> print(fold("y = f(a) if mode is None else g(a)\\n", {"mode": 3}), end="")
    y = g(a)
    >>> print(fold("if size > 2 and is_on:\\n    # why\\n    run()\\nelse:\\n    stop()\\n", {"size": 3}), end="")
    if is_on:
        # why
        run()
    else:
        stop()
    """
    source = Source(text)
    while edits := _Folder(source, known).edits():
        source = source.apply(edits)
    return source.text


class _Folder(ast.NodeVisitor):
    """One pass: collects edits that do not overlap."""

    def __init__(self, source: Source, known: Mapping[str, Any]) -> None:
        self._source, self._known, self._edits = source, dict(known), list[Edit]()
        self._alone = set[ast.stmt]()  # statements that are the whole body of another one

    def edits(self) -> list[Edit]:
        self._statements(self._source.tree.body, self._source.tree)
        return self._edits

    def _statements(self, body: list[ast.stmt], owner: ast.AST) -> None:
        if len(body) == 1 and owner is not self._source.tree:
            self._alone.add(body[0])
        for position, statement in enumerate(body):
            if isinstance(statement, ast.Return | ast.Raise | ast.Continue) and body[position + 1 :]:
                for unreachable in body[position + 1 :]:
                    self._remove(unreachable)
                self.visit(statement)
                return
            if _only_checks(statement):
                self._remove(statement)
            else:
                self.visit(statement)

    def generic_visit(self, node: ast.AST) -> None:
        hidden = self._hide_assigned(node)
        for _, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                self._statements(value, node)
            elif isinstance(value, list):
                for item in value:
                    if isinstance(item, ast.AST):
                        self.visit(item)
            elif isinstance(value, ast.AST):
                self.visit(value)
        self._known |= hidden

    def _hide_assigned(self, node: ast.AST) -> dict[str, Any]:
        """Forget, inside a function, the known names that it gives other values."""
        if not isinstance(node, ast.FunctionDef | ast.Lambda):
            return {}
        assigned = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        return {name: self._known.pop(name) for name in assigned & self._known.keys()}

    def visit_If(self, node: ast.If) -> None:
        value = evaluate(node.test, self._known)
        if value is UNKNOWN:
            if not self._shorten(node.test):
                self.generic_visit(node)
            return
        chosen = node.body if value else node.orelse
        start, end = self._source.lines_of(node)
        if not chosen:
            self._remove(node)
            return
        text = self._lines_of(chosen)
        is_elif = self._source.text[slice(*self._source.span(node))].startswith("elif")
        if not value and len(chosen) == 1 and self._source.text_of(chosen[0]).startswith("elif"):
            begin, stop = self._source.span(node)[0], self._source.span(chosen[0])[0]
            self._edits.append(Edit(begin, stop + (0 if is_elif else 2), ""))
        elif is_elif:  # the branches before it are undecided
            begin = self._source.text.rfind("\n", 0, self._source.span(node)[0]) + 1
            self._edits.append(Edit(begin, end, " " * node.col_offset + "else:\n" + text))
        else:
            self._edits.append(Edit(start, end, shifted(text, chosen[0].col_offset - node.col_offset)))

    def visit_With(self, node: ast.With) -> None:
        """`with context() if IS_USED else nullcontext():` is its body alone if it is not used."""
        match node.items:
            case [ast.withitem(ast.IfExp(test=test, orelse=ast.Call(func=ast.Name(id="nullcontext"))))]:
                value = evaluate(test, self._known)
            case _:
                value = UNKNOWN
        if value is UNKNOWN or value:
            self.generic_visit(node)
            return
        body = shifted(self._lines_of(node.body), node.body[0].col_offset - node.col_offset)
        self._edits.append(Edit(*self._source.lines_of(node), body))

    def _lines_of(self, body: list[ast.stmt]) -> str:
        return self._source.text[self._source.lines_of(body[0])[0] : self._source.lines_of(body[-1])[1]]

    def visit_IfExp(self, node: ast.IfExp) -> None:
        value = evaluate(node.test, self._known)
        if value is UNKNOWN:
            self.generic_visit(node)
        else:
            chosen = self._source.text_of(node.body if value else node.orelse)
            self._edits.append(Edit(*self._source.span(node), chosen))

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        if not (self._choose(node) or self._shorten(node)):
            self.generic_visit(node)

    def _choose(self, node: ast.BoolOp) -> bool:
        """Let `size or default` be one of both if it is known whether there is a size; return whether it is."""
        stops = isinstance(node.op, ast.Or)
        first = evaluate(node.values[0], self._known)
        if first is UNKNOWN or isinstance(first, bool):
            return False
        word = " or " if stops else " and "
        chosen = node.values[:1] if bool(first) == stops else node.values[1:]
        parts = [self._source.text_of(part) for part in chosen]
        text = word.join(parts) if len(parts) > 1 or not isinstance(chosen[0], ast.IfExp) else f"({parts[0]})"
        self._edits.append(Edit(*self._source.span(node), text))
        return True

    def _shorten(self, node: ast.expr) -> bool:
        """Drop the operands of `and` and `or` that are decided; return whether there are any."""
        if not isinstance(node, ast.BoolOp):
            return False
        stops = isinstance(node.op, ast.Or)
        kept = list[ast.expr]()
        for operand in node.values:
            value = evaluate(operand, self._known)
            if value is UNKNOWN:
                kept.append(operand)
            elif bool(value) == stops:
                self._edits.append(Edit(*self._source.span(node), repr(stops)))
                return True
        if len(kept) == len(node.values) or not kept:
            return False
        word = " or " if stops else " and "
        texts = [self._source.text_of(operand) for operand in kept]
        for position, operand in enumerate(kept):  # an operand has no parentheses of its own
            if isinstance(operand, ast.BoolOp) and (len(kept) > 1 or "\n" in texts[position]):
                texts[position] = f"({texts[position]})"
        self._edits.append(Edit(*self._source.span(node), word.join(texts)))
        return True

    def _remove(self, statement: ast.stmt) -> None:
        if statement in self._alone:
            self._edits.append(Edit(*self._source.span(statement), "pass"))
        else:
            self._edits.append(Edit(*self._source.lines_of(statement), ""))


def _only_checks(statement: ast.stmt) -> bool:
    """Return whether a statement only rejects a config: `check_...(...)`, or `if ...: raise ConfigError(...)`."""
    match statement:
        case ast.Expr(value=ast.Call(func=ast.Name(id=name))):
            return name.lstrip("_").startswith(CHECKS)
        case ast.If(body=[*before, ast.Raise(exc=ast.Call(func=ast.Name(id=name)))], orelse=[]):
            return name in ERRORS and all(isinstance(s, ast.Assign) for s in before)
        case ast.For(body=body):
            return all(map(_only_checks, body))
        case _:
            return False


def without_unused_locals(text: str) -> str:
    """Return definitions without the assignments inside functions whose names nothing reads."""
    source = Source(text)
    while True:
        edits = list[Edit]()
        for function in (n for n in ast.walk(source.tree) if isinstance(n, ast.FunctionDef)):
            names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
            read = {name.id for name in names if isinstance(name.ctx, ast.Load)}
            for node in ast.walk(function):
                match node:
                    case ast.Assign(targets=[ast.Name(id=name)], value=value) if name not in read:
                        has_effect = isinstance(value, ast.Call) and _name(value.func) in WITH_EFFECTS
                        begin, end = source.lines_of(node)
                        edit = (source.span(node)[0], source.span(value)[0]) if has_effect else (begin, end)
                        edits.append(Edit(*edit, ""))
                    case _:
                        pass
        edits = list(dict.fromkeys(edits))
        if not edits:
            return source.text
        source = source.apply(edits)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""
