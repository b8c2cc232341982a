"""The results of all cells as a text table, CSV rows, a picture and scalars for trackers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrant.commands.bench.results import CellResult
from hydrant.files.csv_text import as_csv
from hydrant.terminal.text_table import align_columns
from hydrant.training.plotting import Bar, draw_bars

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
"""Title and format of each column of the table. A column that is empty in every row is left out."""

LEGEND = """
ms per update: median of the repeats' medians (range). speed-up: over the eager cell, repeat by repeat (range).
GiB: peak memory of tensors on CUDA; on a CPU that of the process, including compilation. cold s, warm s: seconds of
compilation in the first repeat and in those that reuse its code. MFU: three times the FLOPs of the forward pass per
second, relative to a large matrix product, the fastest of the repeats (sheet: to the data sheet).
"""

_MAX_NOTE = 120  # characters of a reason in the table


def table(results: Sequence[CellResult]) -> str:
    """Return a table with a line for each cell: its figures, or the reason why it has none."""
    axes, figures_of_all = _axes(results), [result.figures() for result in results]
    titles = [title for title, spec in _COLUMNS.items() if any(_format(spec, f) for f in figures_of_all)]
    lines = [[*axes, *titles]]
    for result, figures in zip(results, figures_of_all, strict=True):
        lines.append([result.labels.get(axis, "-") for axis in axes])
        if figures:
            lines[-1] += [_format(_COLUMNS[title], figures) or "-" for title in titles]
    texts = align_columns(lines, range(len(axes)))
    reasons = [(result.status, reason(result)) for result in results]
    notes = ["", *(f"  {status}: {_shorten(text)}" if text else "" for status, text in reasons)]
    return "\n".join(text + note for text, note in zip(texts, notes, strict=True))


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_NOTE else f"{text[:_MAX_NOTE]}... (see bench.json)"


def reason(result: CellResult) -> str:
    """Return why a cell has no figures or no MFU, or ""."""
    if result.status == "ok" and (mfu := result.impossible_mfu) is not None:
        causes = "other load slowed the matrix product, or kernels save operations"
        return f"no MFU, because {mfu:.0%} cannot be true: {causes}"
    if result.status == "differs":
        difference, tolerance = f"{result.loss_difference:.2g}", f"{result.tolerance:g}"
        return f"its loss differs from eager's by a ratio of {difference}; rounding explains {tolerance}"
    if result.status == "not compared":
        return "its eager cell has no result"
    return result.error or ("" if result.repeats else "the command was stopped before")


def columns(results: Sequence[CellResult]) -> tuple[list[str], list[list[Any]]]:
    """Return the column titles and, for each cell, its labels, status, figures and reason."""
    axes, figures_of_all = _axes(results), [result.figures() for result in results]
    names = list(dict.fromkeys(name for figures in figures_of_all for name in figures))
    rows = [
        [*map(result.labels.get, axes), result.status, *map(figures.get, names), reason(result)]
        for result, figures in zip(results, figures_of_all, strict=True)
    ]
    return [*axes, "status", *names, "message"], rows


def write_csv(results: Sequence[CellResult], path: Path) -> None:
    """Write a line for each cell; missing figures are empty."""
    titles, rows = columns(results)
    path.write_text(as_csv([titles, *rows]), encoding="utf-8", newline="")


def draw(results: Sequence[CellResult], title: str, path: Path) -> None:
    """Write a PNG with a bar for each cell that has figures, the fastest first."""
    measured = [(result.figures(), result) for result in results if result.figures()]
    ranked = sorted(measured, key=lambda pair: pair[0]["update_ms"] or 0)
    bars = [
        Bar(
            label=" ".join(result.labels.values()),
            value=figures["update_ms"] or 0.0,
            low=figures["update_ms_min"] or 0.0,
            high=figures["update_ms_max"] or 0.0,
            note=_format("{update_ms:.1f} ms, {speedup:.2f}x", figures),
            is_marked=result.baseline is result,
        )
        for figures, result in ranked
    ]
    draw_bars(bars, path, title=title, unit="ms per update", marked="eager", plain="compiled")


def scalars(results: Sequence[CellResult]) -> dict[str, float]:
    """Return every figure of every cell under a metric key."""
    return {
        f"bench/{result.name.replace(' ', ',')}/{name}": value
        for result in results
        for name, value in result.figures().items()
        if value is not None
    }


def _axes(results: Sequence[CellResult]) -> list[str]:
    """Return the axes of the cell that has the most. Eager cells have no `compile.*` axes."""
    return max((list(result.labels) for result in results), key=len)


def _format(spec: str, figures: Mapping[str, Any]) -> str:
    """Return the content of a column, or "" if a figure is missing."""
    try:
        return spec.format(**figures)
    except (KeyError, TypeError):
        return ""
