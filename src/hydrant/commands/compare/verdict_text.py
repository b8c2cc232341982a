"""The verdicts as text for the terminal: tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence

from hydrant.commands.compare.numbers import interval, number, p_value, signed
from hydrant.commands.compare.verdicts import Verdicts
from hydrant.commands.compare.verdicts.noise_floor import NoiseFloor, seeds_text
from hydrant.commands.compare.verdicts.sensitivity import Sensitivity
from hydrant.commands.compare.verdicts.sizes import Scalings
from hydrant.commands.compare.verdicts.target import TargetVerdict
from hydrant.commands.compare.verdicts.tuning import Tuning
from hydrant.terminal.console import text_width
from hydrant.terminal.text_table import fit_columns

_Part = tuple[str, Sequence[Sequence[Sequence[str]]], Sequence[str]]
"""A title, tables and sentences."""


def verdict_parts(verdicts: Verdicts, max_rows: int) -> list[str]:
    """Return a part of the output for each verdict that there is. `max_rows`: of a table."""
    v = verdicts
    parts = [_noise(v.noise)]
    parts += [] if v.against is None else [_against(v.against)]
    parts += [] if v.sensitivity is None else [_sensitivity(v.sensitivity)]
    parts += [] if v.tuning is None else [_tuning(v.tuning)]
    parts += [] if v.scaling is None else [_scaling(v.scaling)]
    return [
        "\n".join([f"{title}:", *(line for table in tables for line in _table(table, max_rows)), *sentences])
        for title, tables, sentences in parts
    ]


def _table(table: Sequence[Sequence[str]], max_rows: int) -> list[str]:
    """Return the lines of a table, whose first row has the titles; nothing if there are no other rows."""
    shown = table[: max_rows + 1]
    if len(table) < 2:
        return []
    columns = range(len(table[0]) - 1, 1, -1)
    lines, left_out = fit_columns(shown, {0}, text_width(), columns)
    notes = (
        [f"and {len(table) - len(shown)} more, in --json and on the page"] if len(table) > len(shown) else []
    )
    notes += [f"A wider terminal also shows {', '.join(left_out)}."] if left_out else []
    return [*(line.rstrip() for line in lines), *notes]


def _noise(noise: NoiseFloor) -> _Part:
    scatter = [["scatter over seeds", "n", "std", "95 % interval"]]
    named = [*noise.groups.items(), *([("pooled", noise.pooled)] if len(noise.groups) > 1 else [])]
    scatter += [[name, str(s.num), number(s.std), interval(s.low, s.high)] for name, s in named if s.degrees]
    table = [["true difference", "size", "paired seeds", "seeds of each, unpaired"]]
    table += [
        [n.about, number(n.difference), seeds_text(n.paired), seeds_text(n.unpaired)] for n in noise.needs
    ]
    return ("Noise floor and seeds for a power of 80 %", [scatter, table], noise.sentences)


def _against(verdict: TargetVerdict) -> _Part:
    table = [["group", "n", "mean", "95 % interval", "margin", "p (Holm)", "margin √n"]]
    for name, test in verdict.tests.items():
        means = [number(test.mean), interval(test.low, test.high)]
        verdicts = [signed(test.margin), p_value(test.p_holm), signed(test.statistic)]
        table.append([name, str(test.num), *means, *verdicts])
    return (f"Against {verdict.target}", [table], verdict.sentences)


def _sensitivity(found: Sensitivity) -> _Part:
    table = [["optimizer", "lrs", "best lr", "best", "basin", "factor"]]
    for line in found.lines:
        basin = line.basin
        cells = ["-"] * 4
        if basin is not None:
            low, high = "≤" if basin.is_low_open else "", "≥" if basin.is_high_open else ""
            width = f"{'≥' if low or high else ''}{number(basin.factor)}"
            cells = [
                f"{basin.best_lr:g}",
                number(basin.best),
                f"{low}{basin.low:.2g} to {high}{basin.high:.2g}",
                width,
            ]
        table.append([line.name, str(len(line.lrs)), *cells])
    return (
        "Sensitivity to the learning rate",
        [table],
        [found.sentences[0], *found.sentences[-1:]][: len(found.sentences)],
    )


def _tuning(found: Tuning) -> _Part:
    counts = [1, *[n for n in (2, 4, 8, 16, 32) if n < found.budget][-3:], found.budget]
    table = [["method", "trials", "best of 1", *(f"of {n}" for n in counts[1:]), "95 % interval"]]
    for method in found.methods:
        curve = method.curve
        ends = None if curve.low is None or curve.high is None else (curve.low[-1], curve.high[-1])
        values = [number(curve.expected[n - 1]) for n in counts]
        table.append([method.name, str(method.num_trials), *values, interval(*ends) if ends else "-"])
    return ("Tuning under equal budgets", [table], found.sentences)


def _scaling(found: Scalings) -> _Part:
    table = [["method", found.size, "n", "loss", "law"]]
    for scaling in found.methods:
        for size, loss, num in zip(scaling.sizes, scaling.losses, scaling.nums, strict=True):
            law = None if scaling.fit is None else float(scaling.fit.law.at(size))
            table.append([scaling.name, f"{size:.4g}", str(num), number(loss), number(law)])
    return ("Scaling", [table], found.sentences)
