"""The pictures of the reproductions: lines over a number, and fields over two."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from examples.papers.reproductions.finding import Heat, Lines, Panel

IMAGES = Path(__file__).resolve().parents[3] / "docs" / "images"


def file_of(name: str) -> str:
    """Return the name of a picture's file."""
    return f"paper-{name}.png"


def draw(panels: Sequence[Panel], file: Path) -> None:
    """Write a picture."""
    figure = Figure(figsize=(6 if len(panels) == 1 else max(10, 3 * len(panels)), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False).flat, panels, strict=True):
        axes.set_title(panel.title, fontsize="medium")
        axes.set_xlabel(panel.x, fontsize="small")
        axes.set_ylabel(panel.y, fontsize="small")
        axes.tick_params(labelsize="small")
        if isinstance(panel, Heat):
            _draw_heat(axes, panel)
        else:
            _draw_lines(axes, panel)
    figure.savefig(file, dpi=90)


def _draw_heat(axes: Any, panel: Heat) -> None:
    """Draw a field for each pair, relative to the lowest one; grey without a value. A dot marks the lowest of a row."""
    rows, columns = (sorted({pair[n] for pair in panel.values}) for n in (0, 1))
    table = np.asarray([[panel.values[row, column] for column in columns] for row in rows])
    axes.imshow(
        np.ma.masked_invalid(table / np.nanmin(table)),
        norm=LogNorm(1.0, 2.0),
        cmap="viridis_r",
        aspect="auto",
    )
    axes.set_facecolor("lightgrey")
    axes.scatter(np.nanargmin(table, axis=1), range(len(rows)), color="white", edgecolor="black", s=30)
    axes.set_xticks(range(len(columns)), [f"{value:.2g}" for value in columns])
    axes.set_yticks(range(len(rows)), [f"{value:.2g}" for value in rows])


def _draw_lines(axes: Any, panel: Lines) -> None:
    """Draw a line through the means for each label, and a dot for each run."""
    for number, (label, points) in enumerate(panel.points.items()):
        color = f"C{number}"
        axes.plot(list(points), [fmean(values) for values in points.values()], color=color, label=label)
        pairs = [(x, value) for x, values in points.items() if len(values) > 1 for value in values]
        if pairs and len(pairs) <= 100:
            axes.scatter(*zip(*pairs, strict=True), color=color, alpha=0.4, s=12)
    for number, (label, level) in enumerate((panel.levels or {}).items()):
        axes.axhline(level, color=f"C{number}", linestyle="dashed", linewidth=1, label=label)
    axes.set_xscale("log" if "x" in panel.log else "linear")
    axes.set_yscale("log" if "y" in panel.log else "linear")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())  # of a log scale: they overlap
    axes.grid(alpha=0.3)
    if set(panel.points) != {""} or panel.levels:
        # Below the axes it covers nothing.
        axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2, frameon=False)
