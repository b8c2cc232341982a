"""Drop what copied definitions have for other configs: unused methods and parameters, and notes on errors."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping

from hydrant.commands.eject.source_edits import Edit, Source


def with_short_docs(text: str) -> str:
    """Return definitions with the first paragraph of each docstring: no notes on errors, and no doctests."""
    source, edits = Source(text), list[Edit]()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            start, end = source.span(node.body[0])
            first, _, rest = source.text[start:end].partition("\n\n")
            if rest:
                is_long = len(first.rpartition("\n")[2]) + node.body[0].col_offset > 113
                ending = "\n" + " " * node.body[0].col_offset if is_long else ""
                edits.append(Edit(start, end, f'{first.rstrip()}{ending}"""'))
    return source.apply(edits).text


def drop_unused_methods(texts: Mapping[str, str], bundled: Collection[str]) -> dict[str, str]:
    """Return definitions in which the classes that were copied have only methods that something names."""
    kept = dict(texts)
    while True:
        attributes = {
            n.attr for t in kept.values() for n in ast.walk(ast.parse(t)) if isinstance(n, ast.Attribute)
        }
        changed = False
        for name in bundled:
            source = Source(kept[name])
            [statement] = source.tree.body
            if not isinstance(statement, ast.ClassDef) or statement.bases:
                continue
            edits = [
                Edit(*source.lines_of(method), "")
                for method in statement.body
                if isinstance(method, ast.FunctionDef)
                and method.name not in attributes
                and not (method.name.startswith("__") and method.name != "__post_init__")
            ]
            if edits:
                kept[name], changed = source.apply(edits).text, True
        if not changed:
            return kept


def drop_unused_parameters(texts: Mapping[str, str], bundled: Collection[str]) -> dict[str, str]:
    """Return definitions in which the functions that were copied have only parameters that they read."""
    kept = dict(texts)
    for name in bundled:
        source = Source(kept[name])
        function = source.tree.body[0]
        if not isinstance(function, ast.FunctionDef):
            continue
        read = {n.id for part in function.body for n in ast.walk(part) if isinstance(n, ast.Name)}
        positional = function.args.args
        unused = [arg.arg for arg in [*positional, *function.args.kwonlyargs] if arg.arg not in read]
        for parameter in unused:
            position = next((n for n, arg in enumerate(positional) if arg.arg == parameter), None)
            kept[name] = without_parameter(kept[name], parameter)
            kept = {key: without_argument(text, name, parameter, position) for key, text in kept.items()}
            positional = [arg for arg in positional if arg.arg != parameter]
    return kept


def without_parameter(text: str, parameter: str) -> str:
    """Return a function without one of its parameters."""
    source = Source(text)
    function = source.tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    args = function.args
    defaults = {arg.arg: default for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)}
    defaults |= {
        arg.arg: default for arg, default in zip(reversed(args.args), reversed(args.defaults), strict=False)
    }

    def shown(arg: ast.arg) -> str:
        start, end = source.span(arg)
        default = defaults.get(arg.arg)
        return source.text[start:end] + ("" if default is None else f" = {source.text_of(default)}")

    positional = [shown(arg) for arg in args.args if arg.arg != parameter]
    named = [shown(arg) for arg in args.kwonlyargs if arg.arg != parameter]
    every = [*args.args, *args.kwonlyargs]
    opened = source.text.index("(", source.text.index(f"def {function.name}")) + 1
    last = max(source.span(node)[1] for node in [*every, *(d for d in defaults.values() if d is not None)])
    closed = source.text.index(")", last)
    return source.apply(
        [Edit(opened, closed, ", ".join([*positional, *(["*"] if named else []), *named]))]
    ).text


def without_argument(text: str, function: str, parameter: str, position: int | None) -> str:
    """Return the source in which no call of a function passes this parameter."""
    source, edits = Source(text), list[Edit]()
    for call in (n for n in ast.walk(source.tree) if isinstance(n, ast.Call)):
        if not (isinstance(call.func, ast.Name) and call.func.id == function):
            continue
        passed = [*([None] * len(call.args)), *(keyword.arg for keyword in call.keywords)]
        spans = [source.span(argument) for argument in (*call.args, *call.keywords)]
        if parameter in passed:
            index = passed.index(parameter)
        elif position is not None and position < len(call.args):
            index = position
        else:
            continue
        start = spans[index - 1][1] if index else spans[0][0]
        end = spans[index][1] if index or len(spans) == 1 else spans[1][0]
        edits.append(Edit(start, end, ""))
    return source.apply(edits).text
