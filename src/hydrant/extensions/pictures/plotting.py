"""Figures, by matplotlib: images, curves, means with intervals, a confusion matrix.

In the fork server, one is drawn at once: matplotlib finds its fonts and Pillow its formats once, not in every job.
"""

from __future__ import annotations

import contextlib
import os
import textwrap
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from hydrant.sweeps.fork_server import is_fork_server

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from torch import Tensor

Curve = tuple[Sequence[float], Sequence[float]]
"""(x, y) of the same length."""

_MAX_LABELS = 8  # of a legend that names every curve
_MAX_LETTERS = 60  # of a row of a label of a legend


def _new_figure(width: float, height: float, layout: Literal["constrained"] | None = None) -> Figure:
    """Return an empty figure of this size in inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # not pyplot, which is slow to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path | BinaryIO) -> None:
    # The default level makes files a sixth smaller, but takes a quarter of the time of a picture.
    figure.savefig(path, dpi=110, format="png", pil_kwargs={"compress_level": 1})


def draw_images(images: Tensor, titles: Sequence[str], path: Path) -> None:
    """Write a PNG of images, (N, 3 or 1, H, W), each scaled to its own range, with a title above it."""
    num_columns = min(8, len(images))
    num_rows = -(-len(images) // num_columns)
    num_lines = 1 + max(title.count("\n") for title in titles)
    figure = _new_figure(1.5 * num_columns, (1.4 + 0.2 * num_lines) * num_rows, layout="constrained")
    axes = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
    for panel in axes:
        panel.set_axis_off()
    for panel, image, title in zip(axes, images.float(), titles, strict=False):
        low, high = image.amin(), image.amax()
        pixels = ((image - low) / (high - low).clamp(min=1e-12)).permute(1, 2, 0).squeeze(2)
        panel.imshow(pixels.numpy(), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        panel.set_title(title, fontsize="small")
    _save(figure, path)


def draw_confusion(counts: Tensor, class_names: Sequence[str] | None, path: Path) -> None:
    """Write a PNG of a confusion matrix, (C, C): rows are classes, columns predictions; colors are row ratios.

    Up to 20 classes have their names, or else their numbers.
    """
    ratios = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
    num_classes, has_numbers = len(counts), len(counts) <= 20
    side = max(4.0, 0.45 * num_classes) if has_numbers else 9.0
    figure = _new_figure(side + 1.2, side, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(ratios.numpy(), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    if has_numbers:
        names = list(class_names or map(str, range(num_classes)))
        names = [name if len(name) <= 20 else f"{name[:19]}…" for name in names]
        is_short = max(map(len, names)) <= 3
        axes.set_xticks(
            range(num_classes), names, rotation=0 if is_short else 45, ha="center" if is_short else "right"
        )
        axes.set_yticks(range(num_classes), names)
        for row, column in counts.nonzero().tolist():
            color = "white" if ratios[row, column] > 0.5 else "black"
            number = f"{int(counts[row, column]):,}"
            axes.text(column, row, number, ha="center", va="center", color=color, fontsize="small")
    title = f"{int(counts.diagonal().sum()):,} of {int(counts.sum()):,} correct"
    axes.set(xlabel="predicted class", ylabel="true class", title=title)
    figure.colorbar(image, ax=axes, label="ratio of the true class", shrink=0.8)
    _save(figure, path)


def draw_curves(
    panels: Mapping[str, Mapping[str, Curve]],
    path: Path | BinaryIO,
    *,
    columns: int = 1,
    shown: Mapping[str, tuple[float, float] | None] = MappingProxyType({}),
    names_all: bool = False,
) -> None:
    """Write a PNG with a panel for each title and, in it, a curve over the updates for each label.

    A panel whose only label is "" has no legend. In one column, legends are beside the panels and cover no curve.
    With many labels, the colours of its curves go from dark to light in their order, and the legend has a few of them,
    or all if `names_all`. `shown` has ranges of values, by title. Where curves are equal, each
    shows: the next is thinner, and every second one dashed.
    """
    figure, lines = _panels(tuple(tuple(curves) for curves in panels.values()), columns, names_all)
    for panel, of_panel, (title, curves) in zip(figure.axes, lines, panels.items(), strict=False):
        for line, (x, y) in zip(of_panel, curves.values(), strict=True):
            line.set_data(x, y)
        panel.set(xlim=(0, 1), ylim=(0, 1))  # where no value is finite
        panel.relim()
        panel.autoscale()
        if limits := shown.get(title):
            panel.set_ylim(limits)
        low, high = limits or (float("-inf"), float("inf"))
        note = " (first values outside)" * any(v < low or v > high for _, y in curves.values() for v in y)
        panel.set_title(f"{title}{note}", y=1.0)  # a fixed height spares matplotlib measuring what lies below
    _save(figure, path)


@lru_cache(maxsize=2)
def _panels(
    labels: Sequence[Sequence[str]], columns: int, names_all: bool = False
) -> tuple[Figure, list[list[Line2D]]]:
    """Return a figure with a panel for each entry, and the lines of each panel, one for each of its labels.

    The last ones are kept, because every run draws its schedules, and those of a process mostly have the same panels.
    """
    num_rows = -(-len(labels) // columns)
    most = max(map(len, labels)) if names_all else _MAX_LABELS
    named = [_colors_and_labels(of_panel, most) for of_panel in labels]
    # Of the legends.
    rows = [[row for text in texts.values() for row in text.split("\n")] for _, texts in named]
    longest = max(len(row) for of_panel in rows for row in of_panel)
    is_beside = columns == 1 and longest > 0
    beside = 0.55 + 0.064 * longest if is_beside else 0.0  # inches for the legends
    place = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0.0} if is_beside else {}
    of_row = max(2.8, 0.95 + 0.175 * max(map(len, rows)))
    width, height = 8 + beside if columns == 1 else 5 * columns, of_row * num_rows  # inches, as below
    figure = _new_figure(width, height)
    # A fixed layout, because every run draws this figure and an automatic layout draws everything twice.
    figure.subplots_adjust(
        left=0.9 / width,
        right=1 - (0.25 + beside) / width,
        top=1 - 0.4 / height,
        bottom=0.55 / height,
        wspace=1.15 / 3.85,
        hspace=0.95 / 1.85,
    )
    axes = list(figure.subplots(num_rows, columns, squeeze=False).flat)
    for panel in axes[len(labels) :]:
        panel.set_visible(False)
    lines: list[list[Line2D]] = []
    for panel, of_panel, (colors, shown) in zip(axes, labels, named, strict=False):
        step = min(0.6, 3 / len(colors))
        styles = [
            {
                "linestyle": "--" if n % 2 else "-",
                "zorder": 2 + n % 2,
                "linewidth": 1.4 + step * (len(colors) - 1 - n),
            }
            for n in range(len(colors))
        ]
        lines.append(
            [
                panel.plot([], [], label=shown.get(label), color=color, **style)[0]
                for label, color, style in zip(of_panel, colors, styles, strict=True)
            ]
        )
        panel.set_xlabel("update")
        panel.grid(alpha=0.3)
        if set(of_panel) != {""}:
            panel.legend(fontsize="small", **place)
    return figure, lines


def _colors_and_labels(labels: Sequence[str], most: int) -> tuple[Sequence[Any], Mapping[str, str]]:
    """Return a colour for each curve, None for matplotlib's own, and the text of each label that the legend has.

    `most`: so many labels are in a legend; of more, it has five.
    """
    texts = {label: textwrap.fill(label, _MAX_LETTERS) for label in labels}
    if len(labels) <= _MAX_LABELS:
        return [None] * len(labels), texts
    import matplotlib as mpl

    last, num_shown = len(labels) - 1, len(labels) if len(labels) <= most else 5
    colors = [mpl.colormaps["viridis"](0.92 * n / last) for n in range(len(labels))]
    places = [round(n * last / (num_shown - 1)) for n in range(num_shown)]
    return colors, {labels[place]: texts[labels[place]] for place in places}


def draw_study(content: Mapping[str, Any], path: Path) -> None:
    """Write a PNG of a study, by study.json: the mean of each contender with its interval, and its results as dots.

    The best one is on top. Without a mean, there is no picture.
    """
    sign = -1 if content["protocol"]["mode"] == "max" else 1
    rows = [row for row in content["contenders"] if row["mean"] is not None]
    rows.sort(key=lambda row: (sign * row["mean"], row["name"]))
    if not rows:
        return
    figure = _new_figure(8, 1.2 + 0.45 * len(rows), layout="constrained")
    axes = figure.subplots()
    values = [[value for value in row["results"] if value is not None] for row in rows]
    for n, (row, of_row) in enumerate(zip(rows, values, strict=True)):
        axes.scatter(of_row, [n] * len(of_row), color="tab:gray", alpha=0.5, s=14)
        if row["low"] is not None and row["high"] is not None:
            axes.hlines(n, row["low"], row["high"], color="tab:blue", linewidth=2)
        axes.plot([sum(of_row) / len(of_row)], [n], "o", color="tab:blue")
    low, high = min(map(min, values)), max(map(max, values))
    space = 0.5 * (high - low) or 0.1 * abs(low) or 1.0  # a wide interval hides no difference
    axes.set(
        xlabel=content["protocol"]["metric"], xlim=(low - space, high + space), ylim=(-0.6, len(rows) - 0.4)
    )
    axes.set_yticks(range(len(rows)), [textwrap.fill(row["name"], 40) for row in rows])
    axes.invert_yaxis()
    axes.grid(alpha=0.3)
    _save(figure, path)


if is_fork_server():
    # With wrong settings of matplotlib, for example: the job that draws reports them.
    with contextlib.suppress(Exception):
        draw_curves({"": {"": ((0, 1), (0.0, 1.0))}}, Path(os.devnull))
