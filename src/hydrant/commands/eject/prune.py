"""Drop what copied definitions have for other configs: unused methods and parameters, and notes on errors."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Mapping
from textwrap import fill
from typing import TypeGuard

from hydrant.commands.eject.couplings import CONSTRUCTOR
from hydrant.commands.eject.source_edits import Edit, Source

_DOC_WIDTH = 120


def with_short_docs(text: str) -> str:
    """Return definitions with the first paragraph of each docstring: no notes on errors, and no doctests."""
    source, edits = Source(text), list[Edit]()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            start, end = source.span(node.body[0])
            first, _, rest = source.text[start:end].partition("\n\n")
            if rest:
                column, short = node.body[0].col_offset, f'{first.rstrip()}"""'
                if len(short.rpartition("\n")[2]) + column > _DOC_WIDTH:
                    short = fill(" ".join(short.split()), _DOC_WIDTH - column, subsequent_indent=" " * column)
                edits.append(Edit(start, end, short))
    return source.apply(edits).text


def drop_unused_methods(
    texts: Mapping[str, str], bundled: Collection[str], inherits: Callable[[str, str], bool]
) -> dict[str, str]:
    """Return definitions in which the classes that were copied have only methods that something names.

    Methods remain that replace one of a base class: `inherits(class, method)`.
    """
    kept = dict(texts)
    while True:
        nodes = (node for text in kept.values() for node in ast.walk(ast.parse(text)))
        attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        changed = False
        for name in bundled:
            source = Source(kept[name])
            [statement] = source.tree.body
            if not isinstance(statement, ast.ClassDef):
                continue
            edits = [
                Edit(*source.lines_of(method), "")
                for method in statement.body
                if isinstance(method, ast.FunctionDef)
                and method.name not in attributes
                and not (method.name.startswith("__") and method.name != "__post_init__")
                and not inherits(name, method.name)
            ]
            if edits:
                kept[name], changed = source.apply(edits).text, True
        if not changed:
            return kept


def drop_unused_parameters(texts: Mapping[str, str], bundled: Collection[str]) -> dict[str, str]:
    """Return definitions in which functions, and the constructors of classes, have only parameters that they read."""
    kept = dict(texts)
    while True:
        before = dict(kept)
        for name in bundled:
            function = _function(Source(kept[name]))
            if function is None:
                continue
            read = {n.id for part in function.body for n in ast.walk(part) if isinstance(n, ast.Name)}
            positional = [arg for arg in function.args.args if arg.arg != "self"]
            unused = [arg.arg for arg in [*positional, *function.args.kwonlyargs] if arg.arg not in read]
            for parameter in unused:
                position = next((n for n, arg in enumerate(positional) if arg.arg == parameter), None)
                kept[name] = without_parameter(kept[name], parameter)
                kept = {key: without_argument(text, name, parameter, position) for key, text in kept.items()}
                positional = [arg for arg in positional if arg.arg != parameter]
        if kept == before:
            return kept


def _function(source: Source) -> ast.FunctionDef | None:
    """Return the function that source defines, or the constructor of its class; None if there is none."""
    match source.tree.body[0]:
        case ast.FunctionDef() as function:
            return function
        case ast.ClassDef(body=body):
            made = (n for n in body if isinstance(n, ast.FunctionDef) and n.name == CONSTRUCTOR)
            return next(made, None)
        case _:
            return None


def drop_unused_attributes(texts: Mapping[str, str], bundled: Collection[str]) -> dict[str, str]:
    """Return definitions in which the constructors of copied classes set only attributes that something reads.

    What a call makes is kept, because it may draw random numbers or register parameters.
    """
    kept, nodes = dict(texts), [n for t in texts.values() for n in ast.walk(ast.parse(t))]
    read = {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load)}
    for name in bundled:
        source, edits = Source(kept[name]), list[Edit]()
        function = _function(source)
        for statement in ast.walk(function) if function is not None else ():
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                edits += _unread(source, statement, read)
        kept[name] = source.apply(edits).text
    return kept


def _unread(source: Source, statement: ast.Assign | ast.AnnAssign, read: Collection[str]) -> list[Edit]:
    """Return the edits that drop the attributes of `self` in an assignment that nothing reads."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    [target, *others], value = targets, statement.value
    if others or value is None:
        return []
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=True))
    kept = [(t, v) for t, v in pairs if not (_is_own(t) and t.attr not in read and not _calls(v))]
    if len(kept) == len(pairs):
        return []
    if not kept:
        return [Edit(*source.lines_of(statement), "")]
    targets, values = (", ".join(source.text_of(pair[side]) for pair in kept) for side in (0, 1))
    return [Edit(*source.span(statement), f"{targets} = {values}")]


def _is_own(target: ast.expr) -> TypeGuard[ast.Attribute]:
    """Return whether a target is an attribute of `self`."""
    return (
        isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    )


def _calls(value: ast.expr) -> bool:
    return any(isinstance(node, ast.Call) for node in ast.walk(value))


def without_parameter(text: str, parameter: str) -> str:
    """Return a function, or a class with a constructor, without one of its parameters."""
    source = Source(text)
    function = _function(source)
    assert function is not None
    args = function.args
    defaults = {arg.arg: default for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)}
    last = zip(reversed(args.args), reversed(args.defaults), strict=False)
    defaults |= {arg.arg: default for arg, default in last}

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
    parameters = ", ".join([*positional, *(["*"] if named else []), *named])
    return source.apply([Edit(opened, closed, parameters)]).text


def without_argument(text: str, function: str, parameter: str, position: int | None) -> str:
    """Return the source in which no call of a function passes this parameter."""
    source, edits = Source(text), list[Edit]()
    for call in (n for n in ast.walk(source.tree) if isinstance(n, ast.Call)):
        if not (isinstance(call.func, ast.Name) and call.func.id == function):
            continue
        passed = [*([None] * len(call.args)), *(keyword.arg for keyword in call.keywords)]
        if parameter in passed:
            index = passed.index(parameter)
        elif position is not None and position < len(call.args):
            index = position
        else:
            continue
        edits.append(without_nth_argument(source, call, index))
    return source.apply(edits).text


def without_nth_argument(source: Source, call: ast.Call, index: int) -> Edit:
    """Return the edit that drops an argument of a call."""
    spans = [source.span(argument) for argument in (*call.args, *call.keywords)]
    if len(spans) == 1:  # also the comma after it
        return Edit(source.text.index("(", source.span(call.func)[1]) + 1, source.span(call)[1] - 1, "")
    start = spans[index - 1][1] if index else spans[0][0]
    return Edit(start, spans[index][1] if index else spans[1][0], "")
