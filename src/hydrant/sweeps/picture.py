"""The picture of a sweep, sweep.png. Imports torch, so it is imported when a sweep ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hydrant.runs.curve_pictures import curve
from hydrant.runs.folder import SWEEP_PICTURE, RunFolder, read_metrics
from hydrant.sweeps.results_table import labels_of
from hydrant.training.plotting import draw_curves

MAX_DRAWN = 64
"""A picture of more curves shows nothing."""


def draw_curves_of(folder: Path, runs: Sequence[RunFolder], mode: str) -> None:
    """Draw the deciding metric of the runs into `sweep.png`: of 64 at most, the best ones."""
    results = [
        (run.summary.get("best"), label, run) for run, label in zip(runs, labels_of(runs), strict=True)
    ]
    drawn = [(best["value"], label, run) for best, label, run in results if best]
    if not drawn:
        return
    if len(drawn) > MAX_DRAWN:
        drawn.sort(key=lambda entry: entry[0], reverse=mode == "max")
    metric = next(best["metric"] for best, _, _ in results if best)
    repeated = Counter(label for _, label, _ in drawn)
    curves = {
        f"{label} ({run.path.name})" if repeated[label] > 1 else label: curve(read_metrics(run.path), metric)
        for _, label, run in drawn[:MAX_DRAWN]
    }
    draw_curves({metric: curves}, folder / SWEEP_PICTURE)
