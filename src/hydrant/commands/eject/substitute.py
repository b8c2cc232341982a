"""Write a value where a definition has a name."""

from __future__ import annotations

import ast
import re

from hydrant.commands.eject.names import names_in
from hydrant.commands.eject.source_edits import Edit, Source


def with_value(text: str, function: str, name: str, value: str) -> str | None:
    """Return a definition in which a name is a constant inside one of its functions; docstrings have the constant.

    None if the name is used inside an f-string, where the positions of Python 3.11 are wrong.
    """
    source = Source(text)
    found = next(n for n in ast.walk(source.tree) if isinstance(n, ast.FunctionDef) and n.name == function)
    is_operation, edits = isinstance(ast.parse(value, mode="eval").body, ast.BinOp), list[Edit]()
    for parent in (n for part in found.body for n in ast.walk(part)):
        if isinstance(parent, ast.JoinedStr) and name in names_in(parent):
            return None
        if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Name) and parent.func.id == name:
            edits.append(Edit(*source.span(parent), _called(source, parent, value)))
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.Name) and node.id == name:
                needs_parentheses = is_operation and not isinstance(
                    parent, ast.Call | ast.keyword | ast.Assign
                )
                edits.append(Edit(*source.span(node), f"({value})" if needs_parentheses else value))
    edits = [edit for edit in edits if not any(_contains(other, edit) for other in edits)]
    if value.isidentifier():
        edits += _in_docstrings(source, name, value)
    return source.apply(edits).text


def _in_docstrings(source: Source, name: str, value: str) -> list[Edit]:
    """Return the edits that give a name another one in the code that docstrings have."""
    edits = list[Edit]()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            text = source.text_of(node.body[0])
            changed = re.sub(
                r"`[^`]+`|\([^)]*\)", lambda code: re.sub(rf"\b{name}\b(?!=)", value, code[0]), text
            )
            if changed != text:
                edits.append(Edit(*source.span(node.body[0]), changed))
    return edits


def _contains(outer: Edit, inner: Edit) -> bool:
    return outer is not inner and outer.start <= inner.start and inner.end <= outer.end


def _called(source: Source, call: ast.Call, value: str) -> str:
    """Return the call of a constant: `partial(f, a=1)(x)` is `f(x, a=1)`."""
    arguments = [source.text_of(a) for a in call.args]
    arguments += [f"{word.arg}={source.text_of(word.value)}" for word in call.keywords]
    match ast.parse(value, mode="eval").body:
        case ast.Call(func=ast.Name(id="partial"), args=[made, *given], keywords=words):
            given_words = [f"{word.arg}={ast.unparse(word.value)}" for word in words]
            arguments = [*(ast.unparse(part) for part in given), *arguments, *given_words]
            return f"{ast.unparse(made)}({', '.join(arguments)})"
        case _:
            return f"{value}({', '.join(arguments)})"
