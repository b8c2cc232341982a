"""The results of a grid as a table, a CSV, a picture and a W&B run."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrant.measuring import Row
from hydrant.plotting import Bar, draw_bars
from hydrant.tables import aligned

_COLUMNS = {
    "ms per update": "{update_ms:.1f} ({update_ms_min:.1f}-{update_ms_max:.1f})",
    "speed-up": "{speedup:.2f}x ({speedup_min:.2f}-{speedup_max:.2f})",
    "over fp32": "{speedup_over_fp32:.2f}x",
    "GiB": "{peak_memory_gib:.2f}",
    "cold s": "{compile_seconds_cold:.1f}",
    "warm s": "{compile_seconds_warm:.1f}",
    "graphs": "{graphs}",
    "breaks": "{graph_breaks}",
    "recompiles": "{recompiles}",
    "MFU": "{mfu_of_matmul:.1%}",
    "MFU sheet": "{mfu_of_data_sheet:.1%}",
}
"""Title and content of each column of the table; one that is empty in every row is left out."""


LEGEND = """
ms per update: the median of the repeats' medians (their range). speed-up: over the same cell eager, repeat by repeat.
GiB: the most memory of tensors on CUDA; on CPUs of the process, compiling included. cold, warm s: of compiling, in
the first repeat and in those that find its code. MFU: three times the FLOPs of the forward pass per second, of the
rate of a large matrix product timed in the same process (sheet: of the data sheet's).
"""


_NOTE = 120  # characters of a reason in the table


def table(rows: Sequence[Row]) -> str:
    """A line a cell; what gave no figures says why."""
    axes, shown = _axes(rows), [row.figures() for row in rows]
    titles = [title for title, content in _COLUMNS.items() if any(_filled(content, own) for own in shown)]
    lines = [[*axes, *titles]]
    for row, figures in zip(rows, shown, strict=True):
        lines.append([row.labels.get(axis, "-") for axis in axes])
        if figures:
            lines[-1] += [_filled(_COLUMNS[title], figures) or "-" for title in titles]
    texts = aligned(lines, range(len(axes)))
    notes = [""] + [f"  {row.status}: {_shortened(told(row))}" if told(row) else "" for row in rows]
    return "\n".join(text + note for text, note in zip(texts, notes, strict=True))


def _shortened(text: str) -> str:
    return text if len(text) <= _NOTE else f"{text[:_NOTE]}... (bench.json has all)"


def told(row: Row) -> str:
    """Why a cell has no figures."""
    if row.status == "differs":
        return f"its loss differs from eager's by {row.loss_difference:.2g} of it; rounding explains {row.tolerance:g}"
    if row.status == "not compared":
        return "its eager cell gave nothing to compare with"
    return row.error or ("" if row.repeats else "the command was stopped before")


def columns(rows: Sequence[Row]) -> tuple[list[str], list[list[Any]]]:
    """The titles and, a list a cell, the content: its labels, status, figures and what was told."""
    axes, figures = _axes(rows), [row.figures() for row in rows]
    names = list(dict.fromkeys(name for own in figures for name in own))
    cells = [
        [*(row.labels.get(a) for a in axes), row.status, *(own.get(name) for name in names), told(row)]
        for row, own in zip(rows, figures, strict=True)
    ]
    return [*axes, "status", *names, "told"], cells


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """A line a cell; what it has not is empty."""
    with path.open("w", encoding="utf-8", newline="") as file:
        titles, cells = columns(rows)
        csv.writer(file).writerows([titles, *cells])


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """A bar a cell, the fastest first; cells without figures are left out."""
    ranked = sorted(
        ((row.figures(), row) for row in rows if row.figures()), key=lambda pair: pair[0]["update_ms"] or 0
    )
    bars = [
        Bar(
            label=" ".join(row.labels.values()),
            value=figures["update_ms"] or 0.0,
            low=figures["update_ms_min"] or 0.0,
            high=figures["update_ms_max"] or 0.0,
            note=_filled("{update_ms:.1f} ms, {speedup:.2f}x", figures),
            is_marked=row.baseline is row,
        )
        for figures, row in ranked
    ]
    draw_bars(bars, path, title=title, unit="ms per update", marked="eager", plain="compiled")


def scalars(rows: Sequence[Row]) -> dict[str, float]:
    """Every figure of every cell under one name, as trackers show them."""
    return {
        f"bench/{row.name.replace(' ', ',')}/{name}": value
        for row in rows
        for name, value in row.figures().items()
        if value is not None
    }


def _axes(rows: Sequence[Row]) -> list[str]:
    return max((list(row.labels) for row in rows), key=len)


def _filled(content: str, figures: Mapping[str, Any]) -> str:
    """The content of a column; "" where one of its figures is not there."""
    try:
        return content.format(**figures)
    except (KeyError, TypeError):
        return ""
