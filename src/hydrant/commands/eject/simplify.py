"""Shorten definitions whose branches are decided: returned locals, methods of one line, layers that do nothing."""

from __future__ import annotations

import ast
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, TypeGuard

from hydrant.commands.eject.fold import fold
from hydrant.commands.eject.prune import without_nth_argument, without_parameter
from hydrant.commands.eject.source_edits import Edit, Source

_WITH_EFFECTS = ("add_gradients", "clip_gradients")
"""Functions of the program that are called also if nothing reads their result."""


def without_unused_locals(text: str) -> str:
    """Return definitions without the assignments inside functions whose names nothing reads."""
    source = Source(text)
    while True:
        edits = list[Edit]()
        for function in (n for n in ast.walk(source.tree) if isinstance(n, ast.FunctionDef)):
            read = {
                n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)
            }
            for node in ast.walk(function):
                match node:
                    case ast.Assign(targets=[ast.Name(id=name)], value=value) if name not in read:
                        has_effect = isinstance(value, ast.Call) and _name(value.func) in _WITH_EFFECTS
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


def without_returned_locals(text: str) -> str:
    """Return source in which no local is assigned only to be returned.

    >>> print(without_returned_locals("def f(x):\\n    y = 2 * x\\n    return y\\n"), end="")
    def f(x):
        return 2 * x
    """
    source, edits = Source(text), list[Edit]()
    for function in (n for n in ast.walk(source.tree) if isinstance(n, ast.FunctionDef)):
        match function.body:
            case [*_, ast.Assign(targets=[ast.Name(id=local)], value=value) as before,
                  ast.Return(value=ast.Name(id=returned)) as last] if local == returned:  # fmt: skip
                edits.append(
                    Edit(source.span(before)[0], source.span(last)[1], f"return {source.text_of(value)}")
                )
            case _:
                pass
    return source.apply(edits).text


def with_known_flags(text: str, known: Mapping[str, Any]) -> str:
    """Return source in which an argument `name=self._flag` is the known value of the flag."""
    source, edits = Source(text), list[Edit]()
    flags = vars(known["self"]) if isinstance(known.get("self"), SimpleNamespace) else {}
    for node in ast.walk(source.tree):
        match node:
            case ast.keyword(value=ast.Attribute(value=ast.Name(id="self"), attr=name) as value) if (
                name.startswith("_") and isinstance(flags.get(name), bool)
            ):
                edits.append(Edit(*source.span(value), repr(flags[name])))
            case _:
                pass
    return source.apply(edits).text


_DEFAULTS = {"dropout_p": "0.0", "enable_gqa": "False", "bias": "True"}
"""Default arguments of functions and layers of torch."""


def without_defaults(text: str) -> str:
    """Return source without arguments that torch has as defaults."""
    source = Source(text)
    while (edit := _default_edit(source)) is not None:
        source = source.apply([edit])
    return source.text.replace("  # fmt: skip\n", "\n")


def _default_edit(source: Source) -> Edit | None:
    for call in (n for n in ast.walk(source.tree) if isinstance(n, ast.Call)):
        is_of_torch = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in ("nn", "F")
        for index, word in enumerate(call.keywords if is_of_torch else ()):
            if word.arg is not None and ast.unparse(word.value) == _DEFAULTS.get(word.arg):
                return without_nth_argument(source, call, len(call.args) + index)
    return None


def without_idle_layers(text: str, idle: Collection[str]) -> str:
    """Return a class without the layers, attributes of `self`, that return what they get."""
    source = Source(text)
    while (edit := _idle_edit(source, idle)) is not None:
        source = source.apply([edit])
    return source.text


def _idle_edit(source: Source, idle: Collection[str]) -> Edit | None:
    for node in ast.walk(source.tree):
        match node:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]) if name in idle:
                return Edit(*source.lines_of(node), "")
            case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name), args=[argument]) if (
                name in idle
            ):
                return Edit(*source.span(node), source.text_of(argument))
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Name(id=value)) if target == value:
                return Edit(*source.lines_of(node), "")
            case _:
                pass
    return None


def without_absent_arguments(text: str, absent: Collection[str]) -> str:
    """Return a class whose methods do not have arguments that are always None.

    >>> print(without_absent_arguments("y = f(x, mask, is_free=mask is None)", {"mask"}))
    y = f(x, is_free=True)
    """
    for name in absent:
        for method in [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef)]:
            if name in [arg.arg for arg in method.args.args]:
                text = without_parameter(text, name, method.name)
        source = Source(text)
        while (edit := _absent_edit(source, name)) is not None:
            source = source.apply([edit])
        text = source.text
    return text


def _absent_edit(source: Source, name: str) -> Edit | None:
    for node in ast.walk(source.tree):
        match node:
            case ast.Compare(left=ast.Name(id=compared), ops=[ast.Is()]) if compared == name:
                return Edit(*source.span(node), "True")
            case ast.Assign(targets=[ast.Tuple(elts=[ast.Name() as kept, ast.Name(id=target)])],
                            value=ast.Tuple(elts=[value, _])) if target == name:  # fmt: skip
                return Edit(*source.span(node), f"{kept.id} = {source.text_of(value)}")
            case ast.Call(args=positional, keywords=keywords):
                passed = [*positional, *(word.value for word in keywords)]
                names = [*([""] * len(positional)), *(word.arg for word in keywords)]
                for index, (argument, keyword) in enumerate(zip(passed, names, strict=True)):
                    if (isinstance(argument, ast.Name) and argument.id == name) or keyword == name:
                        return without_nth_argument(source, node, index)
            case _:
                pass
    return None


def with_inlined_methods(texts: Mapping[str, str], changed: Collection[str]) -> dict[str, str]:
    """Return definitions in which a method that only returns an expression stands where it is called, if once."""
    kept = dict(texts)
    for name in changed:
        source = Source(kept[name])
        [statement] = source.tree.body
        for method in statement.body if isinstance(statement, ast.ClassDef) else ():
            if (
                isinstance(method, ast.FunctionDef)
                and (text := _with_inlined(source, method, kept)) is not None
            ):
                kept[name] = text
                break
    return kept


def _with_inlined(source: Source, method: ast.FunctionDef, texts: Mapping[str, str]) -> str | None:
    """Return a class without a method that is called once; None if it does more than to return an expression."""
    match method.body:
        case [ast.Expr(), ast.Return(value=ast.expr() as value)]:
            pass
        case _:
            return None
    attributes = [
        n for text in texts.values() for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Attribute)
    ]
    calls = [node for node in ast.walk(source.tree) if _calls_method(node, method.name)]
    parameters = [arg.arg for arg in method.args.args[1:]]
    num_uses = sum(attribute.attr == method.name for attribute in attributes)
    if num_uses != 1 or len(calls) != 1 or method.decorator_list or method.args.kwonlyargs:
        return None
    arguments = dict(zip(parameters, map(ast.unparse, calls[0].args), strict=True))
    if not all(argument.isidentifier() for argument in arguments.values()):
        return None
    result, start = Source(source.text_of(value)), source.span(method)[0]
    edits = [Edit(*result.span(n), arguments[n.id])
             for n in ast.walk(result.tree) if isinstance(n, ast.Name) and n.id in arguments]  # fmt: skip
    lines = source.lines_of(method)
    before = (
        len(source.text[:start]) - len(source.text[:start].rstrip()) - method.col_offset
    )  # with the empty line
    removed = Edit(lines[0] - max(before - 1, 0), lines[1], "")
    return source.apply([Edit(*source.span(calls[0]), result.apply(edits).text), removed]).text


def _calls_method(node: ast.AST, name: str) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name


_SIMPLIFIED: dict[tuple[str, str], str] = {}


def simplified(text: str, known: Mapping[str, Any]) -> str:
    """Return a definition with its branches decided. Results are kept, because most programs share most of them."""
    names = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    names |= {"ACCUMULATES", "ROUNDS_UP"}  # decide a loop and calls
    key = text, repr({name: known[name] for name in sorted(names & known.keys())})
    if key not in _SIMPLIFIED:
        _SIMPLIFIED[key] = without_unused_locals(fold(text, known))
    return _SIMPLIFIED[key]
