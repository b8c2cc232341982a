"""The schedule of a field as source."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import dedent
from typing import Any

from hydrant.clock import Clock, Interval
from hydrant.commands.eject.bundle import read_module, renamed
from hydrant.commands.eject.fold import fold, without_unused_locals
from hydrant.commands.eject.prune import with_short_docs, without_argument, without_parameter
from hydrant.commands.eject.source_edits import Edit, Source, shifted
from hydrant.schedules.base import split_run

_FRAME = ("warmup", "warmup_init_ratio", "cooldown", "noise_ratio", "noise_range", "noise_seed")
_CLOCKED = ("_cyclic",)
"""Functions that make a part of a curve, from the run's clock and arguments of the curve."""

_TITLES = {"lr": "learning rate"}


@dataclass
class FieldSource:
    """The source of one scheduled field.

    Args:
        constants: value and comment by name.
        known: values that decide branches.
        known_in: the same, inside a definition.
        written: definitions with their imports.
    """

    constants: dict[str, tuple[Any, str]] = field(default_factory=dict[str, Any])
    known: dict[str, Any] = field(default_factory=dict[str, Any])
    known_in: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Any])
    written: dict[str, tuple[str, dict[str, tuple[str, str | None]]]] = field(default_factory=dict[str, Any])


def field_source(node: Mapping[str, Any], clock: Clock, name: str) -> FieldSource:
    """Return the source of the schedule of a field."""
    target = pkgutil.resolve_name(node["_target_"])
    warmup, length = split_run(clock, node["warmup"], node["cooldown"])
    source, curve = FieldSource(), inspect.unwrap(target)
    arguments = {key: value for key, value in node.items() if key[0] != "_" and key not in _FRAME}
    for key, value in arguments.items():
        source.constants[key.upper()] = (value, "")
    source.constants["WARMUP"] = (warmup, "updates")
    source.constants["WARMUP_INIT_RATIO"] = (node["warmup_init_ratio"], "of LR in the first update")
    source.constants["CURVE_LENGTH"] = (length, "updates between warmup and cooldown")
    cooldown = clock.total_updates - warmup - length
    end = "NUM_UPDATES" if length == clock.total_updates else "CURVE_LENGTH"
    place = "update - WARMUP" if warmup else "update"
    place = f"min({place}, CURVE_LENGTH)" if cooldown else place
    known = {**arguments, "clock": clock, "end": max(length, 1)}
    source.known_in |= dict.fromkeys((curve.__name__, *_CLOCKED), known)
    names = {**{key: key.upper() for key in arguments}, "end": end}
    imports: dict[str, tuple[str, str | None]] = {}
    text = plain_curve(curve, known, names)
    is_plain = text is not None
    if text is None:
        words = ", ".join([end, *(f"{key}={key.upper()}" for key in arguments)])
        text = f"ratio = {curve.__name__}({words})"
        imports = {curve.__name__: (curve.__module__, curve.__name__)}
    else:
        imports = dict(read_module(curve.__module__).imports) | {
            n: (curve.__module__, n) for n in read_module(curve.__module__).definitions
        }
    if is_plain and not warmup and not cooldown:
        text = renamed(text.replace("def ratio(k: int)", "def learning_rate(update: int)"), {"k": "update"})
        source.written["learning_rate"] = (scaled(text), imports)
        return source
    source.written["ratio"] = (text, imports)
    lines = [
        "def learning_rate(update: int) -> float:",
        '    """Return the learning rate of an update; the first one is 0."""',
    ]
    if warmup:
        lines += [
            "    if update < WARMUP:",
            "        return LR * (WARMUP_INIT_RATIO + (ratio(0) - WARMUP_INIT_RATIO) * update / WARMUP)",
        ]
    lines += [f"    return LR * ratio({place})"]
    own: dict[str, tuple[str, str | None]] = {"ratio": ("hydrant.commands.eject.program.parts", "ratio")}
    source.written["learning_rate"] = ("\n".join(lines) + "\n", own)
    return source


def scaled(function: str) -> str:
    """Return a function of the ratio that returns the learning rate."""
    source = Source(function)
    [returned] = [node for node in ast.walk(source.tree) if isinstance(node, ast.Return)]
    assert returned.value is not None
    value = source.text_of(returned.value)
    inner = f"({value})" if isinstance(returned.value, ast.BinOp | ast.IfExp) else value
    return source.apply([Edit(*source.span(returned.value), f"LR * {inner}")]).text


def plain_curve(make_curve: Any, known: Mapping[str, Any], names: Mapping[str, str]) -> str | None:
    """Return a curve as a function of its own, `ratio(k)`, in which the arguments have other names.

    None if making the curve computes something.
    """
    text = with_short_docs(dedent(inspect.getsource(make_curve)))
    source = Source(without_unused_locals(fold(curve_source(text, known), known)))
    function = source.tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    match function.body:
        case [ast.Expr() as doc, ast.FunctionDef() as curve, ast.Return()]:
            body = "".join(source.text[slice(*source.lines_of(s))] for s in curve.body)
            body = shifted(body, 4)
        case [ast.Expr() as doc, ast.Return(value=ast.Lambda(body=result))]:
            body = f"    return {source.text_of(result)}\n"
        case _:
            return None
    body = body.replace("progress(k, end)", "(k / end)")  # k is from 0 to end
    body = body.replace("((k / end))", "(k / end)").replace(" = (k / end)\n", " = k / end\n")
    summary = source.text_of(doc)
    for argument, constant in names.items():
        summary = re.sub(rf"\b{argument}\b(?=[^\n]*`)", constant, summary) if argument != "end" else summary
    return renamed(f"def ratio(k: int) -> float:\n    {summary}\n{body}", names)


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
    return repr(value)
