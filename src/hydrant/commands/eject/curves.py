"""Source of schedules without the clock of a run."""

from __future__ import annotations

import ast
import re

from hydrant.commands.eject import couplings
from hydrant.commands.eject.prune import without_parameter
from hydrant.commands.eject.source_edits import Source, replace_calls


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
