"""The source of a curve for one config."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from textwrap import dedent, fill
from typing import Any

from hydrant.clock import Interval
from hydrant.commands.eject.bundle import renamed
from hydrant.commands.eject.fold import fold
from hydrant.commands.eject.layout import literal
from hydrant.commands.eject.neutral import without_neutral
from hydrant.commands.eject.prune import with_short_docs, without_argument, without_parameter
from hydrant.commands.eject.simplify import without_unused_locals
from hydrant.commands.eject.source_edits import Edit, Source, shifted

_CLOCKED = ("_cyclic",)
"""Functions that make a part of a curve, from the run's clock and arguments of the curve."""


def simplified(text: str, known: Mapping[str, Any]) -> str:
    """Return a function that makes a curve with its clock's values computed and its branches decided."""
    return with_short_docs(without_unused_locals(fold(curve_source(text, known), known)))


def scaled(function: str, base: str) -> str:
    """Return a function of the ratio that returns the value of a field, whose configured value is `base`."""
    source = Source(function)
    [returned] = [node for node in ast.walk(source.tree) if isinstance(node, ast.Return)]
    assert returned.value is not None
    value = source.text_of(returned.value)
    inner = f"({value})" if isinstance(returned.value, ast.BinOp | ast.IfExp) else value
    return source.apply([Edit(*source.span(returned.value), f"{base} * {inner}")]).text


def plain_curve(make_curve: Any, known: Mapping[str, Any], names: Mapping[str, str]) -> str | None:
    """Return a curve as a function of its own, `ratio(k)`, in which the arguments have other names.

    None if making the curve takes more than a few assignments.
    """
    text = with_short_docs(dedent(inspect.getsource(make_curve)))
    source = Source(without_unused_locals(fold(curve_source(text, known), known)))
    function = source.tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    doc, *before, last = function.body
    assert isinstance(doc, ast.Expr)
    inner = (
        before.pop() if isinstance(last, ast.Return) and isinstance(last.value, ast.Name) and before else last
    )
    if not all(isinstance(s, ast.Assign) and not _needs_helper(s) for s in before):
        return None
    match inner:
        case ast.FunctionDef(body=statements):
            body = shifted("".join(source.text[slice(*source.lines_of(s))] for s in statements), 4)
        case ast.Return(value=ast.Lambda(body=result)):
            body = f"    return {source.text_of(result)}\n"
        case _:
            return None
    body = "".join(source.text[slice(*source.lines_of(s))] for s in before) + body
    body = body.replace("progress(k, end)", "(k / end)")  # k is from 0 to end
    numbers = {name: value for name, value in known.items() if name in names}
    body = without_neutral(f"def ratio(k):\n{body}", numbers).partition("\n")[2]
    body = body.replace("((k / end))", "(k / end)").replace(" = (k / end)\n", " = k / end\n")
    summary = source.text_of(doc.value)
    summary = re.sub(
        "`([^`]+)`", lambda code: f"`{_with_names(_short(code[1], numbers), body, names)}`", summary
    )
    summary = fill(_explained(summary), 105, initial_indent="    ", subsequent_indent="    ")
    return renamed(f"def ratio(k: int) -> float:\n{summary}\n{body}", names)


def _explained(summary: str) -> str:
    """Return a docstring of a curve that says what its letters are: `t` the part of the curve, `k` the update."""
    text = " ".join(summary.split())
    text = re.sub("`[^`]+`", lambda code: re.sub(r"\bk\b", "update", code[0]), text)
    if any(re.search(r"\bt\b", code) for code in re.findall("`([^`]+)`", text)):
        return re.sub(r"(`[^`]*\bt\b[^`]*`)", r"\1, with t from 0 to 1", text, count=1)
    return text


def _short(code: str, numbers: Mapping[str, Any]) -> str:
    """Return a formula of a docstring without what changes nothing for these arguments."""
    try:
        return without_neutral(code, numbers)
    except SyntaxError:
        return code


def _with_names(code: str, body: str, names: Mapping[str, str]) -> str:
    """Return a piece of a docstring with the other names of the arguments that the curve still has."""
    for argument, constant in names.items():
        if argument != "end" and re.search(rf"\b{argument}\b", body):
            code = re.sub(rf"\b{argument}\b", constant, code)
    return code


def _needs_helper(statement: ast.stmt) -> bool:
    """Return whether a statement calls a function that makes a part of a curve."""
    return any(isinstance(n, ast.Name) and n.id in _CLOCKED for n in ast.walk(statement))


def curve_source(text: str, known: Mapping[str, Any]) -> str:
    """Return a function that makes a curve without its decorator, and with all that its clock tells computed."""
    source = Source(fold(text, known))
    function = source.tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    decorated, _ = source.span(function)
    start = source.text.index(f"def {function.name}", decorated)
    edits = [Edit(decorated, start, "")]
    for part in (*function.decorator_list[1:], *function.body):
        _compute(source, part, known, edits)
    text = source.apply(edits).text
    for helper in _CLOCKED:
        text = without_argument(text, helper, "clock", 0)
    return without_parameter(text, "clock")


def _compute(source: Source, node: ast.AST, known: Mapping[str, Any], edits: list[Edit]) -> None:
    """Replace the largest expressions that use the clock by their values."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call | ast.Attribute | ast.ListComp) and _uses_clock(child):
            names = {n.id for n in ast.walk(child) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
            bound = {
                n.id for n in ast.walk(child) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            }
            if names - bound <= known.keys():
                code = compile(ast.Expression(child), "<eject>", "eval")
                edits.append(Edit(*source.span(child), as_source(eval(code, dict(known)))))
                continue
        _compute(source, child, known, edits)


def _uses_clock(node: ast.expr) -> bool:
    return any(isinstance(n, ast.Name) and n.id == "clock" for n in ast.walk(node))


CLOCK_IMPORTS: dict[str, tuple[str, str | None]] = {
    "Fraction": ("fractions", "Fraction"),
    "Interval": ("hydrant.commands.eject.program.intervals", "Interval"),
    "ceil": ("math", "ceil"),
}
"""Where the names in computed values come from."""


def as_source(value: Any) -> str:
    """Return a computed value as source."""
    if isinstance(value, Interval):
        rounded = "ceil" if value.rounded.__name__ == "rounded_up" else "round"
        return f"Interval({value.length!r}, {rounded})"
    return literal(value) if isinstance(value, str | float) else repr(value)
