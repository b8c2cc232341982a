"""One run, from its resolved config to its exit status: the folder, the record, resuming, stopping."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydrant import checkpoint, seeding
from hydrant.build import Prepared, build, prepare, tracker_factory
from hydrant.checkpoint import Checkpoint, Checkpoints
from hydrant.config.resume import Start, starting_point
from hydrant.environment import describe_environment
from hydrant.errors import ConfigError, HydrantError, Interrupted
from hydrant.identity import identify, write_records
from hydrant.job import Job, Result
from hydrant.locking import exclusive
from hydrant.logs import log, logging_to
from hydrant.loop import Run, RunState, train
from hydrant.plotting import draw_curves
from hydrant.profiling import count_parameters, peak_flops, peak_memory_gib
from hydrant.signals import StopRequest
from hydrant.trackers.base import Tracker
from hydrant.trackers.progress import Progress
from hydrant.trackers.record import (
    Record,
    last_values,
    read_metrics,
    read_summary,
    typical,
    write_json,
)

_PERFORMANCE = ("updates_per_second", "samples_per_second", "mfu")


def execute(job: Job) -> Result:
    """Run a job in this process. Never raises: what goes wrong is in the result, the log and the summary."""
    try:
        with exclusive(job.folder):
            return _execute(job)
    except HydrantError as error:
        return Result(error.exit_status, None, str(error))
    except KeyboardInterrupt:
        return Result(130, None, "stopped by SIGINT before the first update")


def _execute(job: Job) -> Result:
    start = starting_point(job.config, job.folder)
    if start.is_finished:
        return _already_finished(job.folder)
    prepared = prepare(job.config)
    start.check_fits(prepared.task.model)
    with logging_to(job.folder / "train.log"), StopRequest() as stop:
        return _open(job, prepared, start).run(stop)


def _open(job: Job, prepared: Prepared, start: Start) -> _Session:
    try:
        return _Session(job, prepared, start)
    except OSError as error:
        raise ConfigError("hydra.run.dir", f"{job.folder} cannot be written: {error}") from error


class _Session:
    """A run while it has its folder: what it writes there, and when."""

    def __init__(self, job: Job, prepared: Prepared, start: Start) -> None:
        device = prepared.world.device
        self._job, self._prepared, self._start = job, prepared, start
        self._loaded = None if start.checkpoint is None else checkpoint.load(start.checkpoint, device)
        counters = {} if self._loaded is None else self._loaded.training["state"]
        self._state = RunState(**counters)
        job.folder.mkdir(parents=True, exist_ok=True)
        identity = identify(job)
        self._tracker: Tracker = tracker_factory(job.config)(identity, self._state.num_updates)
        write_records(job)
        self._record = Record(job.folder, self._state.num_updates)
        self._checkpoints = Checkpoints(job.folder / "checkpoints", keep_last=job.config["keep_last"])
        self._progress = Progress.start(prepared.clock.total_updates, self._state.num_updates)

    def run(self, stop: StopRequest) -> Result:
        error: BaseException | None = None
        try:
            self._train(stop)
        except Interrupted as interrupted:
            error = interrupted
            log.debug("%s", interrupted)
        except KeyboardInterrupt:
            error = Interrupted(signal.SIGINT, self._state.num_updates)
            log.debug("interrupted again: stopped without saving")
        except Exception as failure:
            error = failure
            log.debug("the run failed", exc_info=failure)
        return self._finish(error)

    def _train(self, stop: StopRequest) -> None:
        prepared, state = self._prepared, self._state
        total, trainable = count_parameters(prepared.task)
        log.info("run folder %s", _relative(self._job.folder))
        log.info(
            "%d updates of %d samples (%.4g epochs) on %s; %s parameters%s",
            prepared.clock.total_updates,
            prepared.spec.global_batch_size,
            prepared.clock.epoch(prepared.clock.total_updates),
            prepared.world.device,
            f"{total:,}",
            "" if total == trainable else f", {trainable:,} trained",
        )
        run = build(prepared, self, self._save, stop)
        run.state = state
        self._restore(run)
        self._record.update_summary(
            status="running",
            num_updates=state.num_updates,
            total_updates=prepared.clock.total_updates,
            environment=describe_environment(prepared.world.device),
            wandb=self._tracker.describe(),
            error=None,
        )
        try:
            train(run)
        finally:
            run.stream.close()

    def advance(self, num_updates: int) -> None:
        self._progress.advance()

    def log(self, row: Mapping[str, float]) -> None:
        """One row to the record, the tracker, the bar and, where it holds an evaluation, the log."""
        row = dict(row) | self._compile_figures() | self._utilisation(row)
        self._record.log(row)
        self._tracker.log(row)
        self._progress.log(row)
        values = {k: v for k, v in row.items() if k.startswith("val/")}
        if values:
            shown = ", ".join(f"{k} {v:.4f}" for k, v in values.items())
            log.info("update %d of %d: %s", row["num_updates"], self._prepared.clock.total_updates, shown)

    def _save(self, run: Run, is_best: bool) -> None:
        training = {
            "optimization": run.optimization.state_dict(),
            "precision": run.precision.state_dict(),
            "state": dataclasses.asdict(run.state),
            "meter": run.meter.state_dict(),
            "host": seeding.host_state(),
            "task": {k: v for k, v in run.task.state_dict().items() if not k.startswith("model.")},
        }
        content = Checkpoint(run.model.state_dict(), training)
        self._checkpoints.save(run.state.num_updates, content, is_best=is_best)
        self._record.update_summary(num_updates=run.state.num_updates, best=run.state.best)

    def _restore(self, run: Run) -> None:
        loaded, start = self._loaded, self._start
        if start.weights is not None:
            log.info("weights from %s", start.weights)
            run.model.load_state_dict(checkpoint.load_part(start.weights, "model", run.world.device))
        if loaded is None:
            return
        log.info("continuing from %s at update %d", _relative(start.checkpoint), run.state.num_updates)
        run.model.load_state_dict(loaded.model)
        run.task.load_state_dict(loaded.training["task"], strict=False)  # what is the task's own
        run.optimization.load_state_dict(loaded.training["optimization"])
        run.precision.load_state_dict(loaded.training["precision"])
        run.meter.load_state_dict(loaded.training["meter"])
        seeding.set_host_state(loaded.training["host"])
        if run.state.best is not None:  # a kill may have come before the link moved
            self._checkpoints.mark_best(run.state.best["num_updates"])
        self._loaded = None  # the device has it once

    def _finish(self, error: BaseException | None) -> Result:
        """Write what belongs to the end of a run, however it ended."""
        folder, state = self._job.folder, self._state
        self._progress.close()
        status, exit_status, message = _verdict(error)
        report = self._prepared.compilation.report()
        write_json(folder / "compile_report.json", report.details())
        rows = read_metrics(folder)
        self._record.update_summary(
            status=status,
            num_updates=state.num_updates,
            total_updates=self._prepared.clock.total_updates,
            metrics=last_values(rows),
            best=state.best,
            compile=report.summary(),
            perf={key: typical(rows, f"perf/{key}") for key in _PERFORMANCE}
            | {"peak_memory_gib": peak_memory_gib(self._prepared.world.device)},
            error=None if error is None or status == "preempted" else _describe(error),
        )
        picture = folder / "schedule.png"
        _draw_schedules(self._prepared, picture)
        self._tracker.image("schedule", picture)
        self._tracker.finish(exit_status, self._record.summary)
        self._record.update_summary(wandb=self._tracker.describe())
        self._record.close()
        if error is None:
            log.info("finished: %s", _outcome(state, rows))
        return Result(exit_status, None if state.best is None else state.best["value"], message)

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


def _draw_schedules(prepared: Prepared, path: Path) -> None:
    total = prepared.clock.total_updates
    updates = range(0, total, max(total // 2000, 1))  # as many points as a picture shows
    curves = prepared.schedule_values(updates)
    draw_curves({key: {"": (updates, values)} for key, values in curves.items()}, path)


def _already_finished(folder: Path) -> Result:
    summary = read_summary(folder)
    print(f"already finished: {_relative(folder)}, {summary['num_updates']} updates; nothing to do")
    return Result(0, (summary.get("best") or {}).get("value"), "")


def _verdict(error: BaseException | None) -> tuple[str, int, str]:
    """(status, exit status, the last line on stderr)."""
    match error:
        case None:
            return "finished", 0, ""
        case Interrupted():
            return "preempted", error.exit_status, str(error)
        case HydrantError():
            return "failed", error.exit_status, str(error)
        case _:
            description = _describe(error)
            return "failed", 1, f"{description['type']}: {description['message']}"


def _describe(error: BaseException) -> dict[str, str]:
    text = str(error).strip()
    return {"type": type(error).__name__, "message": text.splitlines()[0] if text else ""}


def _outcome(state: RunState, rows: list[dict[str, Any]]) -> str:
    text = f"{state.num_updates} updates"
    if state.best is not None:
        metric, value = state.best["metric"], state.best["value"]
        last = last_values(rows).get(metric, value)
        shown = "NaN" if last is None else f"{last:.4f}"  # what is not finite is null in the record
        text += f", {metric} {shown}, best {value:.4f} at update {state.best['num_updates']}"
    return text


def _relative(path: Path | None) -> str:
    assert path is not None
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
