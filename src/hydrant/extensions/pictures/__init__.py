"""Pictures of runs, sweeps, studies and schedules, by matplotlib: a listener to all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydrant.runs.folder import CURVES_PICTURE, SCHEDULE_PICTURE, SWEEP_PICTURE, RunFolder

if TYPE_CHECKING:
    from hydrant.batch import Batch, Outcome
    from hydrant.runs.reporter import RunReporter
    from hydrant.training.trainer import Plan, Trainer

PRELOAD = {"Pictures": (f"{__name__}.curves", f"{__name__}.predictions")}


class Pictures:
    """Draws what a run, a sweep, a study or a preview tells.

    `pictures` of a run: of the inputs, and of the predictions after every `evaluation` or the last one (`end`).
    """

    def on_start(self, trainer: Trainer) -> None:
        """Log the first samples of the next update as the model receives them, if pictures are configured."""
        if trainer.plan.config["pictures"] is None:
            return
        from hydrant.extensions.pictures.predictions import Predictions, input_pictures
        from hydrant.training.loop import is_over

        names = trainer.plan.data.class_names
        self._predictions = Predictions(names)
        self.on_evaluation_batch = self._add  # only now, so that evaluations without pictures cost nothing
        if not is_over(trainer):  # else the start completes what a killed run did not write
            for name, draw in input_pictures(trainer.first_batch(), names).items():
                trainer.logger.picture(name, draw)

    def _add(self, trainer: Trainer, batch: Batch, outcome: Outcome) -> None:
        self._predictions.add(batch, outcome)

    def after_evaluation(self, trainer: Trainer, row: Mapping[str, float]) -> None:
        """Log the pictures of the predictions, if they are configured. What does not fit them is left out."""
        plan, when = trainer.plan, trainer.plan.config["pictures"]
        if when is None:
            return
        from hydrant.training.loop import is_over

        if when == "evaluation" or is_over(trainer):
            for name, draw in self._predictions.pictures(plan.world, plan.parallel.all_reduce).items():
                trainer.logger.picture(name, draw)
        self._predictions.clear()

    def on_result(self, reporter: RunReporter) -> None:
        """Draw the schedules and the curves of a run that has ended."""
        from hydrant.extensions.pictures.curves import draw_run, draw_schedules
        from hydrant.runs.record import read_metrics
        from hydrant.terminal.console import show_activity
        from hydrant.terminal.progress_bar import show_picture

        show_activity(f"writing {SCHEDULE_PICTURE}")
        schedule, curves = reporter.folder / SCHEDULE_PICTURE, reporter.folder / CURVES_PICTURE
        with reporter.optional(SCHEDULE_PICTURE):  # also where a library for it fails
            draw_schedules(reporter.plan, schedule)
            reporter.image("schedule", schedule)
        if reporter.job.sweep_folder is None:  # a sweep has many short runs, and is looked at as a whole
            with reporter.optional(CURVES_PICTURE):
                best = reporter.summary.get("best") or {}
                draw_run(read_metrics(reporter.folder), best.get("metric"), curves)
                if curves.exists():
                    show_picture(curves)

    def on_sweep_end(self, folder: Path, runs: Sequence[RunFolder], mode: str) -> None:
        from hydrant.extensions.pictures.curves import draw_sweep
        from hydrant.sweeps.plan import print_write_errors

        with print_write_errors(folder / SWEEP_PICTURE):
            draw_sweep(folder, runs, mode)

    def on_study_end(self, content: Mapping[str, Any], png: Path) -> None:
        from hydrant.extensions.pictures.curves import draw_study

        draw_study(content, png)

    def on_preview(
        self,
        plan: Plan,
        updates: Sequence[int],
        curves: Mapping[str, Mapping[str, Sequence[float]]],
        png: Path,
    ) -> None:
        from hydrant.extensions.pictures.plotting import draw_curves

        panels = {
            field: {group: (updates, values) for group, values in c.items()} for field, c in curves.items()
        }
        draw_curves(panels, png)
