"""Write the body of a short function where it is called."""

from __future__ import annotations

import ast

from hydrant.commands.eject.bundle import renamed
from hydrant.commands.eject.source_edits import Edit, Source, shifted

_MOST_STATEMENTS = 8


def inlined(caller: str, function: str) -> str | None:
    """Return a function in which the body of another one stands where it calls that, as `target = name(...)`.

    None if the body is long, has a loop or names of the caller, if the arguments are not names, or if the result is
    used in another way than `all += result`.

    >>> f = "def f(x: int) -> list[int]:\\n    y = 2 * x\\n    return [y]\\n"
    >>> print(inlined("def g(z: int) -> None:\\n    new = f(z)\\n    show(z)\\n    all += new\\n", f), end="")
    def g(z: int) -> None:
        y = 2 * z
        show(z)
        all.append(y)
    """
    source, inner = Source(caller), Source(function)
    [definition] = inner.tree.body
    assert isinstance(definition, ast.FunctionDef)
    body = definition.body[1:] if ast.get_docstring(definition) is not None else definition.body
    statement, call = _call(source, definition.name)
    *statements, last = body
    if (
        statement is None
        or call is None
        or not isinstance(last, ast.Return)
        or last.value is None
        or not _is_short(statements)
    ):
        return None
    arguments = dict(zip((arg.arg for arg in definition.args.args), map(ast.unparse, call.args), strict=True))
    own = _stored(definition) - arguments.keys()
    if own & _stored(source.tree) or not all(argument.isidentifier() for argument in arguments.values()):
        return None
    result = inner.text_of(last.value)
    text = "".join(inner.text[slice(*inner.lines_of(statement))] for statement in statements)
    text = renamed(f"def body():\n{text}    return {result}\n", arguments)
    lines, result = text.partition("\n")[2].rsplit("    return ", 1)
    indented = shifted(lines, 4)
    indented = "".join(f"{' ' * statement.col_offset}{line}" for line in indented.splitlines(keepends=True))
    uses = _uses(source, ast.unparse(statement.targets[0]), result.strip())
    return source.apply([Edit(*source.lines_of(statement), indented), *uses]).text if uses else None


def _call(source: Source, name: str) -> tuple[ast.Assign | None, ast.Call | None]:
    """Return the only call of a function, as the value of an assignment to one name, and this assignment."""
    found = list[tuple[ast.Assign, ast.Call]]()
    for node in ast.walk(source.tree):
        match node:
            case ast.Assign(
                targets=[ast.Name()], value=ast.Call(func=ast.Name(id=called), keywords=[]) as call
            ):
                found += [(node, call)] if called == name else []
            case _:
                pass
    return found[0] if len(found) == 1 else (None, None)


def _is_short(statements: list[ast.stmt]) -> bool:
    nodes = [node for statement in statements for node in ast.walk(statement)]
    num_statements = sum(isinstance(node, ast.stmt) for node in nodes)
    return num_statements <= _MOST_STATEMENTS and not any(
        isinstance(n, ast.For | ast.FunctionDef) for n in nodes
    )


def _stored(tree: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _uses(source: Source, name: str, result: str) -> list[Edit]:
    """Return the edits that use the returned expression itself: `all += result` appends the entry of a list.

    There are none if the result is used in another way too.
    """
    value, edits = ast.parse(result, mode="eval").body, list[Edit]()
    for node in ast.walk(source.tree):
        match node:
            case ast.AugAssign(target=into, value=ast.Name(id=used)) if used == name and isinstance(
                value, ast.List
            ):
                entries = ", ".join(map(ast.unparse, value.elts))
                edits.append(Edit(*source.span(node), f"{ast.unparse(into)}.append({entries})"))
            case _:
                pass
    num_uses = sum(isinstance(n, ast.Name) and n.id == name for n in ast.walk(source.tree))
    return edits if num_uses == len(edits) + 1 else []  # and where it is assigned
