"""Pictures of runs, sweeps, studies and schedules, by matplotlib: a listener to all of them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hydrant.config.groups import REPETITIONS
from hydrant.extensions.pictures.plotting import Curve, draw_curves, draw_study
from hydrant.runs.folder import CURVES_PICTURE, SCHEDULE_PICTURE, SWEEP_PICTURE, RunFolder
from hydrant.runs.record import read_metrics
from hydrant.sweeps.plan import print_write_errors
from hydrant.terminal.console import show_activity

if TYPE_CHECKING:
    from hydrant.runs.reporter import RunReporter
    from hydrant.training.trainer import Plan, Trainer

PRELOAD = {"Pictures": (f"{__name__}.predictions",)}


class Pictures:
    """Draws what a run, a sweep, a study or a preview tells."""

    def on_start(self, trainer: Trainer) -> None:
        """Begin to listen to evaluations, if pictures are configured; else they cost nothing."""
        if (when := trainer.plan.config["pictures"]) is not None:
            from hydrant.extensions.pictures.predictions import Predictions, log_inputs  # imports torch

            predictions = Predictions(trainer.plan.data.class_names, when)
            self.on_evaluation_batch, self.after_evaluation = predictions.add, predictions.log
            log_inputs(trainer)

    def on_result(self, reporter: RunReporter) -> None:
        """Draw the schedules and the curves of a run that has ended."""
        show_activity(f"writing {SCHEDULE_PICTURE}")
        schedule, curves = reporter.folder / SCHEDULE_PICTURE, reporter.folder / CURVES_PICTURE
        with reporter.optional(SCHEDULE_PICTURE):  # also where a library for it fails
            draw_schedules(reporter.plan, schedule)
            reporter.trackers.image("schedule", schedule)
        if reporter.job.sweep_folder is None:  # a sweep has many short runs, and is looked at as a whole
            with reporter.optional(CURVES_PICTURE):
                best = reporter.summary.get("best") or {}
                _, mode = reporter.plan.early_stopping.judges_by
                draw_run(read_metrics(reporter.folder), best.get("metric"), mode, curves)
                if curves.exists():
                    reporter.progress.picture(curves)

    def on_sweep_end(self, folder: Path, runs: Sequence[RunFolder], mode: str) -> None:
        with print_write_errors(folder / SWEEP_PICTURE):
            draw_sweep(folder, runs, mode)

    def on_study_end(self, content: Mapping[str, Any], png: Path) -> None:
        draw_study(content, png)

    def on_preview(self, plan: Plan, curves: Mapping[str, Mapping[str, Curve]], png: Path) -> None:
        draw_curves(curves, png)


_FEW = 8  # points of a picture, all of which it shows

Rows = Sequence[Mapping[str, Any]]


def draw_run(rows: Rows, metric: str | None, mode: str, path: Path) -> None:
    """Draw the losses, a metric, the learning rates and the norms of the gradients, as far as the rows have them.

    Losses and the metric are shown where they differ (`_shown_range`); `mode` is that of the metric.
    """
    keys = list(dict.fromkeys(key for row in rows for key in row))
    titles = {
        "loss": [key for key in ("train/loss", "val/loss") if key in keys],
        metric or "": [metric] if metric in keys and metric != "val/loss" else [],
        "learning rate": [key for key in keys if re.match(r"optim/(\w+/)?lr(/|$)", key)],
        "norm of the gradients": [key for key in keys if re.match(r"optim/(\w+/)?grad_norm(/|$)", key)],
    }
    panels = {
        title: {key if len(of_title) > 1 else "": curve(rows, key) for key in of_title}
        for title, of_title in titles.items()
        if of_title
    }
    if panels:
        modes = {"loss": "min", metric or "": mode}
        shown = {title: _shown_range(panels[title], modes[title]) for title in modes.keys() & panels.keys()}
        draw_curves(panels, path, columns=2, shown=shown)


def curve(rows: Rows, key: str) -> Curve:
    """Return the updates and the values of a metric; a value that was not finite is NaN."""
    points = [(row["num_updates"], row[key]) for row in rows if key in row]
    return [x for x, _ in points], [math.nan if y is None else y for _, y in points]


def draw_schedules(plan: Plan, path: Path) -> None:
    """Draw every scheduled field over the run."""
    total = plan.clock.total_updates
    updates = range(0, total, max(total // 2000, 1))  # a picture shows no more points
    curves = plan.optimizers.schedules.panels(updates).items()
    path.write_bytes(_picture(tuple((field, tuple(groups.items())) for field, groups in curves)))


@lru_cache(maxsize=16)
def _picture(curves: Sequence[tuple[str, Sequence[tuple[str, Curve]]]]) -> bytes:
    """Return a PNG with a panel for each field. The last ones are kept, because runs of a process often share one."""
    file = BytesIO()
    draw_curves({field: dict(groups) for field, groups in curves}, file)
    return file.getvalue()


MAX_SETTINGS = 30
"""A picture of more shows nothing."""


def draw_sweep(folder: Path, runs: Sequence[RunFolder], mode: str) -> None:
    """Draw the deciding metric of the runs into `sweep.png`: the mean of each setting, or of the 30 best ones.

    The runs of a setting differ in the seed or the fold alone.
    """
    from hydrant.sweeps.results_table import differing_choices  # late, because single runs do not need it

    choices = differing_choices([run.choices for run in runs], REPETITIONS)
    # If all settings have the same keys, the title has these.
    keys, *further = {tuple(of_run): None for of_run in choices}
    labels = (" ".join(map("=".join, of_run.items()) if further else of_run.values()) for of_run in choices)
    results = [
        (best, run, label)
        for run, label in zip(runs, labels, strict=True)
        if (best := run.summary.get("best"))
    ]
    if not results:
        return
    metric = results[0][0]["metric"]
    by_setting: dict[str, list[tuple[float, RunFolder]]] = {}
    for best, run, label in results:
        by_setting.setdefault(label, []).append((best["value"], run))
    ordered = sorted(by_setting, key=lambda s: fmean(v for v, _ in by_setting[s]), reverse=mode == "max")
    curves = dict[str, Curve]()
    for label in ordered[:MAX_SETTINGS]:
        of_runs = [curve(read_metrics(run.path), metric) for _, run in by_setting[label]]
        number = f"mean of {len(of_runs)} runs" if len(of_runs) > 1 else ""
        curves[f"{label} ({number})" if label and number else label or number or "1 run"] = _mean(of_runs)
    title = f"{metric} by {', '.join(keys)}" if keys and not further else metric
    left_out = f", the best {MAX_SETTINGS} of {len(ordered)} settings" if len(ordered) > MAX_SETTINGS else ""
    shown = {title + left_out: _shown_range(curves, mode)}
    draw_curves({title + left_out: curves}, folder / SWEEP_PICTURE, shown=shown, names_all=True)


def _mean(curves: Sequence[Curve]) -> Curve:
    """Return the mean of curves, at the updates at which all of them have a value."""
    values = [dict(zip(*of_run, strict=True)) for of_run in curves]
    updates = [x for x in values[0] if all(x in of_run for of_run in values)]
    return updates, [fmean(of_run[x] for of_run in values) for x in updates]


def _shown_range(curves: Mapping[str, Curve], mode: str) -> tuple[float, float] | None:
    """Return the range of values to show; None to show all: of few points, or of equal ones.

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
    if len(shown) < _FEW:
        return None
    shown.append((min if mode == "min" else max)(y for y, _ in points))
    space = 0.05 * (max(shown) - min(shown))
    return (min(shown) - space, max(shown) + space) if space else None
