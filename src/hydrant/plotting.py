"""Pictures of a run."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

Curve = tuple[Sequence[float], Sequence[float]]
"""(x, y), equally long."""

_BARS = " ▁▂▃▄▅▆▇█"


def draw_pixels(picture: Tensor, path: Path) -> None:
    """A PNG of a picture, (3 or 1, H, W) in 0..1."""
    from PIL import Image

    pixels = (picture.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).squeeze(2).numpy()
    Image.fromarray(pixels).save(path)


def draw_images(images: Tensor, titles: Sequence[str], path: Path) -> None:
    """A PNG of images, (N, 3 or 1, H, W), each from its least value to its largest, under its title."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = min(8, len(images))
    num_rows = -(-len(images) // columns)
    num_lines = 1 + max(title.count("\n") for title in titles)
    figure = Figure(figsize=(1.5 * columns, (1.4 + 0.2 * num_lines) * num_rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(num_rows, columns, squeeze=False).flat)
    for panel in axes:
        panel.set_axis_off()
    for panel, image, title in zip(axes, images.float(), titles, strict=False):
        low, high = image.amin(), image.amax()
        pixels = ((image - low) / (high - low).clamp(min=1e-12)).permute(1, 2, 0).squeeze(2)
        panel.imshow(pixels.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        panel.set_title(title, fontsize="small")
    figure.savefig(path, dpi=110, format="png")


def draw_confusion(counts: Tensor, path: Path) -> None:
    """A PNG of how often each class, a row, was taken for each, a column: (C, C). Coloured by shares of the rows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shares = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
    num_classes, has_numbers = len(counts), len(counts) <= 20
    side = max(4.0, 0.45 * num_classes) if has_numbers else 9.0
    figure = Figure(figsize=(side + 1.2, side), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    image = axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    if has_numbers:
        axes.set_xticks(range(num_classes))
        axes.set_yticks(range(num_classes))
        for row, column in counts.nonzero().tolist():
            colour = "white" if shares[row, column] > 0.5 else "black"
            number = f"{int(counts[row, column]):,}"
            axes.text(column, row, number, ha="center", va="center", color=colour, fontsize="small")
    right = int(counts.diagonal().sum())
    title = f"{right:,} of {int(counts.sum()):,} right"
    axes.set(xlabel="taken for", ylabel="class", title=title)
    figure.colorbar(image, ax=axes, label="share of the class", shrink=0.8)
    figure.savefig(path, dpi=110, format="png")


def draw_curves(panels: Mapping[str, Mapping[str, Curve]], path: Path, *, columns: int = 1) -> None:
    """A PNG with a panel for each title, in it a curve over the updates for each label; "" has no legend."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # pyplot is not needed and is slow to import
    from matplotlib.figure import Figure

    num_rows = -(-len(panels) // columns)
    width, height = 8 if columns == 1 else 5 * columns, 2.8 * num_rows  # inches, as below
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    # Laid out by hand: every run draws one, and a layout that measures its texts draws all of it twice.
    figure.subplots_adjust(
        left=0.9 / width, right=1 - 0.25 / width, top=1 - 0.4 / height, bottom=0.55 / height,
        wspace=1.15 / 3.85, hspace=0.95 / 1.85,
    )  # fmt: skip
    axes = list(figure.subplots(num_rows, columns, squeeze=False).flat)
    for panel in axes[len(panels) :]:
        panel.set_visible(False)
    for panel, (title, curves) in zip(axes, panels.items(), strict=False):
        for label, (x, y) in curves.items():
            panel.plot(x, y, label=label, linewidth=1.5)
        panel.set_title(title, y=1.0)  # else all is measured for what it may have to stand above
        panel.set_xlabel("update")
        panel.grid(alpha=0.3)
        if set(curves) != {""}:
            panel.legend(fontsize="small")
    figure.savefig(path, dpi=110, format="png")


@dataclass(frozen=True)
class Bar:
    """A bar from 0, a line from `low` to `high` across its end, and a note behind it."""

    label: str
    value: float
    low: float
    high: float
    note: str
    is_marked: bool  # drawn in grey


def draw_bars(bars: Sequence[Bar], path: Path, *, title: str, unit: str, marked: str, plain: str) -> None:
    """A PNG of bars, the first on top; `marked` and `plain` are what the two colours stand for."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.4 + 0.35 * len(bars)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name, colour, is_marked in ((plain, "tab:blue", False), (marked, "tab:gray", True)):
        own = [(n, bar) for n, bar in enumerate(bars) if bar.is_marked == is_marked]
        if own:
            axes.barh([n for n, _ in own], [bar.value for _, bar in own], color=colour, label=name)
    for n, bar in enumerate(bars):
        axes.hlines(n, bar.low, bar.high, color="black", linewidth=1)
        axes.annotate(
            bar.note, (max(bar.value, bar.high), n), (4, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(bars)), [bar.label for bar in bars])
    axes.invert_yaxis()
    axes.set(xlabel=unit, xlim=(0, 1.3 * max((max(bar.value, bar.high) for bar in bars), default=1)))
    figure.suptitle(textwrap.fill(title, 100), fontsize="medium")
    if bars:
        axes.legend(fontsize="small", loc="upper right")
    figure.savefig(path, dpi=110, format="png")


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """A curve in one line of text.

    >>> sparkline([0, 1, 2, 4], width=4)
    ' ▂▄█'
    """
    top = max(values)
    columns = min(width, len(values))
    edges = [round(i * len(values) / columns) for i in range(columns + 1)]
    picked = [max(values[a:b]) for a, b in itertools.pairwise(edges)]
    levels = len(_BARS) - 1
    return "".join(_BARS[max(round(v / top * levels), 1) if v > 0 else 0] for v in picked)
