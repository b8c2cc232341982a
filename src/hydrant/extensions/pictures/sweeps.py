"""The picture of a sweep, sweep.png. Imports torch, so it is imported when a sweep ends."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from hydrant.config.schema import REPETITIONS
from hydrant.extensions.pictures.plotting import Curve, draw_curves
from hydrant.extensions.pictures.runs import curve
from hydrant.runs.folder import SWEEP_PICTURE, RunFolder
from hydrant.runs.record import read_metrics
from hydrant.sweeps.results_table import differing_choices

MAX_SETTINGS = 30
"""A picture of more shows nothing."""


def draw_curves_of(folder: Path, runs: Sequence[RunFolder], mode: str) -> None:
    """Draw the deciding metric of the runs into `sweep.png`: the mean of each setting, or of the 30 best ones.

    The runs of a setting differ in the seed or the fold alone.
    """
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
    curves = dict[str, Curve]()
    for label in ordered[:MAX_SETTINGS]:
        of_runs = [curve(read_metrics(run.path), metric) for _, run in by_setting[label]]
        number = f"mean of {len(of_runs)} runs" if len(of_runs) > 1 else ""
        curves[f"{label} ({number})" if label and number else label or number or "1 run"] = _mean(of_runs)
    left_out = f", the best {MAX_SETTINGS} of {len(ordered)} settings" if len(ordered) > MAX_SETTINGS else ""
    shown = _shown_range(curves, mode)
    draw_curves({metric + left_out: curves}, folder / SWEEP_PICTURE, shown=shown, names_all=True)


def _mean(curves: Sequence[Curve]) -> Curve:
    """Return the mean of curves, at the updates at which all of them have a value."""
    values = [dict(zip(*of_run, strict=True)) for of_run in curves]
    updates = [x for x in values[0] if all(x in of_run for of_run in values)]
    return updates, [fmean(of_run[x] for of_run in values) for x in updates]


def _shown_range(curves: Mapping[str, Curve], mode: str) -> tuple[float, float] | None:
    """Return the range of values to show; None if there are no two values.

    It is the range after the first quarter of each curve, because the untrained model would hide how the results
    differ, widened to the best value, which may be earlier.
    """
    points = [
        (y, x > updates[-1] / 4)
        for updates, values in curves.values()
        for x, y in zip(updates, values, strict=True)
        if math.isfinite(y)
    ]
    shown = [y for y, is_late in points if is_late]
    if not shown:
        return None
    shown.append((min if mode == "min" else max)(y for y, _ in points))
    space = 0.05 * (max(shown) - min(shown))
    return (min(shown) - space, max(shown) + space) if space else None
