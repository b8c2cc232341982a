"""The picture of a sweep, sweep.png. Imports torch, so it is imported when a sweep ends."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from hydrant.config.schema import REPETITIONS
from hydrant.runs.folder import SWEEP_PICTURE, RunFolder
from hydrant.runs.pictures import curve
from hydrant.runs.record import read_metrics
from hydrant.sweeps.results_table import differing_choices
from hydrant.training.plotting import Curve

MAX_SETTINGS = 30
"""A picture of more shows nothing."""
_NUM_COLOURS = 10  # of tab10; more settings get shades of viridis
_MAX_LETTERS = 60  # of a label of the legend


class Setting(NamedTuple):
    """The runs of a sweep that are repetitions of each other: they differ in the seed or the fold alone."""

    label: str
    curves: Sequence[Curve]

    @property
    def mean(self) -> Curve:
        """The mean of the runs, at the updates at which all of them have a value."""
        values = [dict(zip(*of_run, strict=True)) for of_run in self.curves]
        updates = [x for x in values[0] if all(x in of_run for of_run in values)]
        return updates, [fmean(of_run[x] for of_run in values) for x in updates]

    @property
    def text(self) -> str:
        """What the legend says."""
        label = self.label if len(self.label) <= _MAX_LETTERS else f"{self.label[: _MAX_LETTERS - 1]}…"
        if len(self.curves) == 1:
            return label or "1 run"
        number = f"mean of {len(self.curves)} runs"
        return f"{label} ({number})" if label else number


def draw_curves_of(folder: Path, runs: Sequence[RunFolder], mode: str) -> None:
    """Draw the deciding metric of the runs into `sweep.png`: of each setting, or of the 30 best ones."""
    labels = zip(runs, differing_choices([run.choices for run in runs], REPETITIONS), strict=True)
    results = [(best, run, label) for run, label in labels if (best := run.summary.get("best"))]
    if not results:
        return
    metric = results[0][0]["metric"]
    by_setting: dict[str, list[tuple[float, RunFolder]]] = {}
    for best, run, label in results:
        by_setting.setdefault(label, []).append((best["value"], run))
    ordered = sorted(
        by_setting, key=lambda label: fmean(v for v, _ in by_setting[label]), reverse=mode == "max"
    )
    settings = [
        Setting(label, [curve(read_metrics(run.path), metric) for _, run in by_setting[label]])
        for label in ordered[:MAX_SETTINGS]
    ]
    left_out = f", the best {MAX_SETTINGS} of {len(ordered)} settings" if len(ordered) > MAX_SETTINGS else ""
    draw_settings(settings, metric + left_out, folder / SWEEP_PICTURE, mode)


def draw_settings(settings: Sequence[Setting], title: str, path: Path, mode: str) -> None:
    """Write a PNG of settings, best first: a colour for each, thin lines for its runs, a thick one for their mean."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # not pyplot, which is slow to import
    from matplotlib.figure import Figure

    beside = 0.6 + 0.066 * max(len(setting.text) for setting in settings)  # inches for the legend
    width, height = 8 + beside, max(3.2, 0.95 + 0.175 * len(settings))
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    left, bottom, right = 0.9 / width, 0.55 / height, 1 - (0.25 + beside) / width
    axes = figure.add_axes((left, bottom, right - left, 1 - 0.4 / height - bottom))
    few = len(settings) <= _NUM_COLOURS
    colours = mpl.colormaps["tab10" if few else "viridis"]
    for place, setting in enumerate(settings):
        colour = colours(place) if few else colours(0.92 * place / (len(settings) - 1))
        order = -place  # the best ones lie above the others
        is_mean = len(setting.curves) > 1
        for x, y in setting.curves if is_mean else ():
            axes.plot(x, y, linewidth=0.8, alpha=0.35, color=colour, zorder=2 + 0.01 * order)
        thick = 2.0 if is_mean else 1.5
        axes.plot(*setting.mean, label=setting.text, linewidth=thick, color=colour, zorder=3 + 0.01 * order)
    axes.set(xlabel="update", title=title)
    if (shown := _shown_range(settings, mode)) is not None:
        axes.set_ylim(shown)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0)
    figure.savefig(path, dpi=110, format="png", pil_kwargs={"compress_level": 1})


def _shown_range(settings: Sequence[Setting], mode: str) -> tuple[float, float] | None:
    """Return the range of values to show; None if there are no two values.

    It is the range after the first quarter of each curve, because the untrained model would hide how the results
    differ, widened to the best value, which may be earlier.
    """
    points = [
        (y, x > updates[-1] / 4)
        for setting in settings
        for updates, values in setting.curves
        for x, y in zip(updates, values, strict=True)
        if math.isfinite(y)
    ]
    shown = [y for y, is_late in points if is_late]
    if not shown:
        return None
    shown.append((min if mode == "min" else max)(y for y, _ in points))
    space = 0.05 * (max(shown) - min(shown))
    return (min(shown) - space, max(shown) + space) if space else None
