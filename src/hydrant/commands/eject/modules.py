"""Source that does not name the modules it takes definitions from, nor the clock of a run."""

from __future__ import annotations

import ast
import importlib
import re

from hydrant.commands.eject import couplings
from hydrant.commands.eject.bundle import is_own
from hydrant.commands.eject.prune import without_parameter
from hydrant.commands.eject.source_edits import Edit, Source, replace_calls


def without_module_names(text: str, imports: dict[str, tuple[str, str | None]]) -> str:
    """Return a source in which `seeding.mix` is `mix`; adds the imports of these names."""
    source, edits = Source(text), list[Edit]()
    for node in ast.walk(source.tree):
        if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)):
            continue
        origin, original = imports.get(node.value.id, ("", None))
        if original is not None and is_own(origin) and _is_module(f"{origin}.{original}"):
            edits.append(Edit(*source.span(node), node.attr))
            imports[node.attr] = (f"{origin}.{original}", node.attr)
    return source.apply(edits).text


def without_local_imports(text: str, imports: dict[str, tuple[str, str | None]]) -> str:
    """Return a source without the imports inside its functions; adds them to those of the file."""
    source, edits = Source(text), list[Edit]()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            start, end = source.lines_of(node)
            end += source.text[end:].startswith("\n")  # the empty line after it
            edits.append(Edit(start, end, ""))
            imports |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
    return source.apply(edits).text


def _is_module(name: str) -> bool:
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def without_clock(text: str) -> str:
    """Return a definition of `hydrant.schedules` that takes no clock.

    >>> print(without_clock("@framed\\ndef f(clock: Clock, end: int):\\n    return clock.updates(end, '')"))
    def f(end: int):
        return end
    """
    text = replace_calls(text.removeprefix(couplings.FRAMED), _without_clock).replace(": object", ": Any")
    text = re.sub(rf"(-> |: ){couplings.CURVE}\b", r"\1Callable[[int], float]", text)
    tree = Source(text).tree
    has_clock = any(isinstance(node, ast.arg) and node.arg == couplings.CLOCK for node in ast.walk(tree))
    return without_parameter(text, couplings.CLOCK) if has_clock else text


def _without_clock(call: ast.Call) -> str | None:
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=couplings.CLOCK)), args=[*_, duration, _]):
            return ast.unparse(duration)
        case ast.Call(func=ast.Name(id=couplings.SPLIT_RUN), args=[_, warmup, cooldown]):
            return f"({ast.unparse(warmup)}, {ast.unparse(cooldown)})"
        case ast.Call(func=ast.Name(id=name), args=[ast.Name(id=couplings.CLOCK), *others], keywords=[]):
            return f"{name}({', '.join(map(ast.unparse, others))})"
        case _:
            return None
