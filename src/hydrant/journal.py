"""Where a run is followed: the record, the tracker, the progress bar and the log."""

from __future__ import annotations

import contextlib
import math
import platform
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

from hydrant.build import Prepared, tracker_factory
from hydrant.ending import Ending
from hydrant.environment import describe_environment
from hydrant.identity import identify, write_records
from hydrant.job import Job
from hydrant.logs import log, told
from hydrant.parts import NoJournal, RunState
from hydrant.plotting import draw_curves
from hydrant.profiling import count_parameters, peak_flops, peak_memory_gib
from hydrant.runs import figures
from hydrant.studies import Trial
from hydrant.trackers.base import Histogram, Tracker
from hydrant.trackers.progress import Progress
from hydrant.trackers.record import Record, last_values, read_metrics, typical, write_json

_SCHEDULE_POINTS = 200
_PERFORMANCE = ("updates_per_second", "samples_per_second", "mfu")


class NoRunJournal(NoJournal):
    """What ranks other than 0 have in its place."""

    def file(self, path: Path) -> None: ...

    def checkpoint(self, **fields: Any) -> None: ...

    def note(self, **fields: Any) -> None: ...

    def conclude(self, ending: Ending, state: RunState) -> None: ...

    def close(self, ending: Ending) -> None: ...


class RunJournal:
    """Everything a run tells, from the moment it has its folder.

    Args:
        history: the folder with the rows before `num_updates`, of this run or of the one it goes on from.

    Raises:
        ConfigError: the tracker refuses its settings; nothing is written then.
        OSError: the folder cannot be written.
    """

    def __init__(self, job: Job, prepared: Prepared, num_updates: int, history: Path) -> None:
        self._folder, self._prepared, self._num_updates = job.folder, prepared, num_updates
        self._causes = set[str]()  # why something could not be written, each told once
        total_updates, world = prepared.clock.total_updates, prepared.world
        self._tracker: Tracker = tracker_factory(job.config)(identify(job), num_updates)
        try:
            write_records(job)
            self._record = Record(job.folder, num_updates, history)
            self._record.update_summary(
                status="running",
                num_updates=num_updates,
                total_updates=total_updates,
                environment=describe_environment(world.device, world.world_size),
                host=platform.node(),
                wandb=self._tracker.describe(),
                num_parameters=count_parameters(prepared.task)[0],
                error=None,
                **_trial_fields(job.trial),
            )
        except BaseException:
            self._tracker.finish(1, {})
            raise
        self._progress = Progress.start(total_updates, num_updates)

    def advance(self) -> None:
        """One update is done."""
        self._progress.advance()

    def log(self, row: Mapping[str, float]) -> None:
        """One row to the record, the tracker, the bar and, where it holds an evaluation, the log."""
        self._num_updates = int(row["num_updates"])
        row = dict(row) | self._compile_figures() | self._utilisation(row)
        with self._beside("metrics.jsonl"):
            self._record.log(row)
        self._tracker.log(row)
        self._progress.log(row)
        values = {k: v for k, v in row.items() if k.startswith(("val/", "val_ema/"))}
        for key in (k for k, v in values.items() if not math.isfinite(v)):
            log.warning("%s is not finite at update %d", key, row["num_updates"])
        if values:
            shown = ", ".join(f"{k} {v:.4f}" for k, v in values.items())
            log.info("update %d of %d: %s", row["num_updates"], self._prepared.clock.total_updates, shown)

    def picture(self, name: str, draw: Callable[[Path], None]) -> None:
        """A picture, which `draw` writes, into `pictures/<name>/` and to the tracker."""
        path = self._folder / "pictures" / name / f"update_{self._num_updates:08d}.png"
        with self._beside(f"picture {name}"):
            path.parent.mkdir(parents=True, exist_ok=True)
            draw(path)
            self._tracker.image(name, path)

    def histograms(self, num_updates: int, histograms: Mapping[str, Histogram]) -> None:
        """Histograms of weights and gradients after so many updates, to the record and the tracker."""
        with self._beside("histograms.jsonl"):
            self._record.histograms(num_updates, histograms)
        self._tracker.histograms(num_updates, histograms)

    def checkpoint(self, **fields: Any) -> None:
        """The last checkpoint was written, for the tracker to keep if it is to; with fields of summary.json."""
        self.note(**fields)
        self._tracker.checkpoint((self._folder / "checkpoints" / "last").resolve())

    def file(self, path: Path) -> None:
        """A file in the run folder, for the tracker to keep with the run."""
        self._tracker.file(path)

    def note(self, **fields: Any) -> None:
        """Set fields of summary.json, if it can be written."""
        with self._beside("summary.json"):
            self._record.update_summary(**fields)

    def conclude(self, ending: Ending, state: RunState) -> None:
        """Write how the run ended and what came of it: the summary, from its rows.

        Raises:
            OSError: it cannot be written.
        """
        self._progress.close()
        self._record.flush()
        rows = read_metrics(self._folder)
        self._record.update_summary(
            status=ending.status,
            num_updates=state.num_updates,
            metrics=last_values(rows),
            best=state.best,
            compile=self._prepared.compilation.report().summary(),
            perf={key: typical(rows, f"perf/{key}") for key in _PERFORMANCE}
            | {"peak_memory_gib": peak_memory_gib(self._prepared.world.device)},
            num_damaged_samples=self._prepared.data.faults.num_damaged,
            error=ending.error,
            **({"pruned": True} if state.is_pruned else {}),
        )
        if num_damaged := self._prepared.data.faults.num_damaged:
            log.warning("damaged samples skipped since this start, each named above: %d", num_damaged)
        if ending.status == "finished":
            log.info("finished: %s", _outcome(state, self._prepared.clock.total_updates, rows))
            if self._prepared.compilation.is_on:
                log.info("compiled: %s", self._prepared.compilation.report())
            if self._prepared.config["claim"] is not None:
                log.info("claim: %s", self._prepared.config["claim"])
                log.info("here: %s", figures(self._record.summary))

    def close(self, ending: Ending) -> None:
        """Write what is only for looking at, and end the tracker. What fails is told; the rest goes on."""
        picture = self._folder / "schedule.png"
        with self._beside("compile_report.json"):
            write_json(self._folder / "compile_report.json", self._prepared.compilation.report().details())
        with self._beside("schedule.png"):
            _draw_schedules(self._prepared, picture)
            self._tracker.image("schedule", picture)
        with self._beside("schedule.json"):
            write_json(self._folder / "schedule.json", _schedule_points(self._prepared))
        try:
            with told("tracker"):
                self._tracker.finish(ending.exit_status, self._record.summary)
            self.note(wandb=self._tracker.describe())
        finally:
            with self._beside("metrics.jsonl"):
                self._record.close()

    @contextlib.contextmanager
    def _beside(self, what: str) -> Generator[None]:
        """Nothing raised in here ends training. It is told; a disk that is full, once."""
        with told(what):
            try:
                yield
            except OSError as error:
                cause = error.strerror or str(error)
                if cause not in self._causes:
                    log.warning("%s cannot be written: %s; training goes on", what, cause)
                self._causes.add(cause)

    def _compile_figures(self) -> dict[str, float]:
        report = self._prepared.compilation.report()
        return {f"compile/{k}": v for k, v in report.summary().items()} if report.graphs else {}

    def _utilisation(self, row: Mapping[str, float]) -> dict[str, float]:
        peak = peak_flops(self._prepared.world.device)
        rate = row.get("perf/samples_per_second")
        if peak is None or rate is None:
            return {}
        per_device = rate / self._prepared.world.world_size
        return {"perf/mfu": 3 * self._prepared.flops_per_sample * per_device / peak}


def _trial_fields(trial: Trial | None) -> dict[str, Any]:
    """What the summary of a trial says of its study."""
    return {} if trial is None else {"trial": {"number": trial.number, "objectives": trial.objectives}}


def _draw_schedules(prepared: Prepared, path: Path) -> None:
    total = prepared.clock.total_updates
    updates = range(0, total, max(total // 2000, 1))  # as many points as a picture shows
    curves = prepared.schedule_values(updates)
    draw_curves({key: {"": (updates, values)} for key, values in curves.items()}, path)


def _schedule_points(prepared: Prepared) -> dict[str, Any]:
    """The schedules as `hydrant compare` draws them: few points of each that is known beforehand."""
    last = prepared.clock.total_updates - 1
    updates = sorted({n * last // (_SCHEDULE_POINTS - 1) for n in range(_SCHEDULE_POINTS)})
    return {"updates": updates, "values": prepared.optimization.schedules.curves(updates)}


def _outcome(state: RunState, total_updates: int, rows: list[dict[str, Any]]) -> str:
    why = "pruned by the study" if state.is_pruned else "no new best for so long as patience says"
    text = f"{state.num_updates} updates{f' ({why})' if state.num_updates < total_updates else ''}"
    if state.best is not None:
        metric, value = state.best["metric"], state.best["value"]
        last = last_values(rows).get(metric, value)
        shown = "not finite" if last is None else f"{last:.4f}"  # it is null in the record
        text += f", {metric} {shown}, best {value:.4f} at update {state.best['num_updates']}"
    return text
