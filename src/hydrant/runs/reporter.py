"""`RunReporter`: writes what a run reports: its machine and software, its measurements, and its last lines too."""

import contextlib
import logging
import math
import os
import platform
import shlex
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from msgspec import to_builtins

from hydrant.clock import Duration
from hydrant.config.metric_keys import is_averaged
from hydrant.data.splits import VAL
from hydrant.errors import FolderLost, log, log_errors
from hydrant.files.on_disk import as_csv, write_json
from hydrant.installation import commit, entry_points, version
from hydrant.runs import folder as run_folder
from hydrant.runs.job import Job, RunResult, identify, write_records
from hydrant.runs.lock import check_held
from hydrant.runs.log_setup import seconds_of_call
from hydrant.runs.record import History, RunRecord, last_values, read_metrics, typical_value
from hydrant.runs.resume import stretches_of
from hydrant.terminal.console import Progress, format_duration, log_fields, relative, show_activity
from hydrant.terminal.text import format_metric, number
from hydrant.trackers import Histogram, Trackers
from hydrant.training.checkpoint.manager import Rows
from hydrant.training.costs import count_parameters, peak_flops, peak_memory_gib
from hydrant.training.trainer import Plan, RunLogger, TrainState


class NullRunReporter(RunLogger, Rows):
    """The RunReporter of all ranks but 0: reports nothing."""

    def file(self, path: Path) -> None: ...

    def checkpoint(self, path: Path, **fields: Any) -> None: ...

    def note(self, **fields: Any) -> None: ...

    def conclude(self, result: RunResult, state: TrainState) -> None: ...

    def end_training(self) -> None: ...

    def close(self, result: RunResult) -> None: ...


_NUM_SCHEDULE_POINTS = 200  # in schedule.json


class RunReporter(RunLogger, Rows):
    """Reports a run to its folder, the trackers, the progress bar and the log.

    `job`, `plan`, `folder`, `summary`, `progress` and `trackers` are for listeners.

    Args:
        history: the rows that the run continues.
        environment: the result of `describe_environment`, if it was called once for several runs.

    Raises:
        ConfigError: a tracker rejects its settings; nothing is written then.
        OSError: the folder cannot be written.
    """

    def __init__(
        self, job: Job, plan: Plan, history: History, environment: Mapping[str, Any] | None = None
    ) -> None:
        self.job, self.folder, self.plan, self._num_updates = job, job.folder, plan, history.num_updates
        self._began = time.monotonic() - (seconds_of_call() or 0.0)
        self._first_update = history.num_updates
        self._logged_at = 0.0  # the time of the last row
        self._has_trained = False  # else this process only completes the files of a run
        self._reported_causes = set[str]()  # why files could not be written; each is logged once
        total_updates, world, trial = plan.clock.total_updates, plan.world, job.trial
        identity = replace(identify(job), history=history.metrics)
        self.trackers = Trackers(job.config, identity, history.num_updates)
        try:
            stretches = stretches_of(job.config, history)
            begun = {"status": run_folder.RunStatus.RUNNING, "num_updates": history.num_updates}
            if not (job.folder / run_folder.CONFIG).exists():
                write_records(job)  # first: a start after a kill tells by it that a run wrote the other files
            self._record = RunRecord(job.folder, history)
            if stretches != (self.summary.get("stretches") or []):
                # Before another config.yaml, so that a kill between the two loses nothing of what has trained the run.
                self._record.update_summary(**begun, stretches=stretches)
            write_records(job)
            self._record.update_summary(
                **begun,
                total_updates=total_updates,
                environment=environment or describe_environment(world.device, world.world_size),
                host=platform.node(),
                **self.trackers.recorded(),
                num_parameters=count_parameters(plan.task)[0],
                num_samples=plan.identity.samples,
                flops_per_sample=plan.flops.per_sample,
                error=None,
                **({"loss_of_batch": plan.splits[VAL].batch_size} if plan.task.loss_of_batch else {}),
                **({"trial": to_builtins(trial)} if trial else {}),
            )
        except BaseException:
            self.trackers.finish(1, {})
            raise
        self.progress = Progress.start(total_updates, history.num_updates)

    @property
    def summary(self) -> dict[str, Any]:
        """summary.json."""
        return self._record.summary

    def advance(self) -> None:
        """Count one update."""
        self._has_trained = True
        self.progress.advance()

    def log(self, row: Mapping[str, float]) -> None:
        """Report a row to the record, the trackers and the bar; an evaluation to the log too.

        Raises:
            FolderLost: the run folder was removed or replaced.
        """
        check_held(self.folder)
        self._num_updates = int(row["num_updates"])
        # The rows of a start are in the order of their times, also if the machine's clock is set back.
        self._logged_at = max(row["time"], math.nextafter(self._logged_at, math.inf))
        row = dict(row) | figures(self.plan, row) | {"time": self._logged_at}
        with self.optional(run_folder.METRICS):
            self._record.metrics.append(row)
        self.trackers.log(row)
        self.progress.log(row)
        values = {k: v for k, v in row.items() if k.startswith(("val/", "val_ema/"))}
        for key in (k for k, v in values.items() if not math.isfinite(v)):
            log.warning("%s is not finite at update %d", key, row["num_updates"])
        if values:
            shown = ", ".join(f"{k} {format_metric(v)}" for k, v in values.items())
            is_for_all = is_shown(self.plan, self._num_updates)  # else only train.log has it
            level = logging.INFO if is_for_all else logging.DEBUG
            log.log(level, "update %d of %d: %s", row["num_updates"], self.plan.clock.total_updates, shown)

    def picture(self, name: str, draw: Callable[[Path], None]) -> None:
        """Let `draw` write a picture into `pictures/<name>/`, and send it to the trackers."""

        def write(path: Path) -> None:
            draw(path)
            self.progress.picture(path)
            self.trackers.image(name, path)

        self._write_file(run_folder.PICTURES, name, "png", write)

    def text(self, name: str, text: str) -> None:
        """Write a text into `texts/<name>/`, and send it to the tracker."""

        def write(path: Path) -> None:
            path.write_text(text, encoding="utf-8")
            self.trackers.text(name, text)

        self._write_file(run_folder.TEXTS, name, "txt", write)

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Write a table into `tables/<name>/`, and send it to the tracker."""

        def write(path: Path) -> None:
            path.write_text(as_csv([columns, *rows]), encoding="utf-8", newline="")
            self.trackers.table(name, columns, rows)

        self._write_file(run_folder.TABLES, name, "csv", write)

    def histograms(self, num_updates: int, histograms: Mapping[str, Histogram]) -> None:
        """Report the histograms of weights and gradients after `num_updates` to the record and the trackers."""
        with self.optional(run_folder.HISTOGRAMS):
            self._record.histograms(num_updates, histograms)
        self.trackers.histograms(num_updates, histograms)

    def num_rows(self) -> Mapping[str, int]:
        """Return the number of rows that each file of the record has, when a checkpoint begins.

        Raises:
            FolderLost: the run folder was removed or replaced.
        """
        check_held(self.folder)
        return self._record.num_rows()

    def sync_rows(self) -> None:
        """Flush the rows to disk, in the checkpoint thread.

        Raises:
            FolderLost: the run folder was removed or replaced, so the checkpoint has no place there.
        """
        check_held(self.folder)
        self._record.sync()

    def checkpoint(self, path: Path, **fields: Any) -> None:
        """Give the trackers the checkpoint that was just written, and set fields of summary.json."""
        self.note(**fields)
        self.trackers.checkpoint(path.resolve())

    def file(self, path: Path) -> None:
        """Give the trackers a file of the run folder."""
        self.trackers.file(path)

    def note(self, **fields: Any) -> None:
        """Set fields of summary.json. If it cannot be written, only log that."""
        with self.optional(run_folder.SUMMARY):
            self._record.update_summary(**fields)

    def end_training(self) -> None:
        """End the bar, because no update follows."""
        self.progress.close()
        show_activity("writing the last checkpoint")

    def conclude(self, result: RunResult, state: TrainState) -> None:
        """Write the results and the end of the run into the summary, and log them. Only `close` writes `finished`.

        Raises:
            FolderLost: the run folder was removed or replaced.
            OSError: the summary cannot be written.
        """
        check_held(self.folder)
        plan, is_finished = self.plan, result.status == run_folder.RunStatus.FINISHED
        num_damaged, compiled = plan.data.damaged.num_damaged, plan.compilation.report()
        self.progress.close()
        self._record.sync()
        rows = read_metrics(self.folder)
        # If this process only completes files, the figures are those of the process that made the last update.
        measured = measurements(plan, rows)
        recorded = {} if self._has_trained else self.summary
        has_reason = state.end_reason or "end_reason" in self.summary
        self._record.update_summary(
            status=run_folder.RunStatus.RUNNING if is_finished else result.status,
            num_updates=state.num_updates,
            metrics=last_values(rows),
            best=state.best,
            error=result.error,
            **(measured | {key: recorded[key] for key in measured if key in recorded}),
            **({"pruned": True} if state.is_pruned else {}),
            **({"end_reason": state.end_reason} if has_reason else {}),
        )
        if num_damaged:
            log.warning("damaged samples skipped since this start, each named above: %d", num_damaged)
        if is_finished:
            log.info("finished: %s", result_text(state, plan.clock.total_updates, rows))
            if plan.compilation.is_on:
                log.info("compiled: %s", compiled)
            if plan.config["claim"] is not None:
                log.info("claim: %s", plan.config["claim"])
                log.info("here: %s", run_folder.performance_text(self.summary))
        seconds = time.monotonic() - self._began
        self.plan.hooks.call("on_result", self)
        if is_finished:
            log_fields(end_lines(self.job, seconds, self.summary, rows, self._first_update))

    def close(self, result: RunResult) -> None:
        """Write the reports and finish the trackers, even if one of them fails.

        The status `finished` is written last. If the process is killed earlier, the next start finishes the job.

        Raises:
            FolderLost: the run folder was removed or replaced.
            OSError: the reports or the status of a finished run cannot be written.
        """
        failure: OSError | None = None
        try:
            check_held(self.folder)
            self._write_reports()
        except FolderLost:
            log.debug("no reports without a run folder")
        except OSError as error:
            if result.status == run_folder.RunStatus.FINISHED:
                failure, result = error, RunResult.from_error(error)
        try:
            show_activity(f"ending tracker={self.job.choices.get('tracker')}")
            self.trackers.finish(result.exit_status, self.summary | {"status": result.status})
            self.note(**self.trackers.recorded())
            if failure is not None:
                raise failure
            if result.status == run_folder.RunStatus.FINISHED:
                self._record.update_summary(status=result.status)
        finally:
            with self.optional(run_folder.METRICS):
                self._record.close()

    def _write_reports(self) -> None:
        compiled = self.folder / run_folder.COMPILE_REPORT
        if self._has_trained or not compiled.exists():
            write_json(compiled, self.plan.compilation.report().details())
        last = self.plan.clock.total_updates - 1
        updates = sorted({n * last // (_NUM_SCHEDULE_POINTS - 1) for n in range(_NUM_SCHEDULE_POINTS)})
        values = self.plan.optimizers.schedules.curves(updates)  # without those that depend on metrics
        write_json(self.folder / run_folder.SCHEDULE_VALUES, {"updates": updates, "values": values})

    @contextlib.contextmanager
    def optional(self, file: str) -> Generator[None]:
        """Log an error instead of raising it, because training can continue; the same OSError only once."""
        with log_errors(file), contextlib.suppress(FolderLost):  # `log` and `conclude` raise it
            try:
                yield
            except OSError as error:
                cause = error.strerror or str(error)
                if cause not in self._reported_causes:
                    log.warning("%s cannot be written: %s; training continues", file, cause)
                self._reported_causes.add(cause)

    def _write_file(self, kind: str, name: str, suffix: str, write: Callable[[Path], None]) -> None:
        """Let `write` write a file of the present update, in a folder that exists. If that fails, only log it."""
        with self.optional(f"{kind}/{name}"):
            check_held(self.folder)
            path = self.folder / kind / name / f"update_{self._num_updates:08d}.{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path)


_PERFORMANCE = ("updates_per_second", "samples_per_second", "mfu")
_MAX_EVALUATIONS = 20  # that are shown, besides the first and the last


def describe_environment(device: torch.device, world_size: int) -> dict[str, Any]:
    """Return versions, GPU, number of ranks and git commits; None for values that do not exist here.

    `git_commit` and `git_dirty` describe the current folder, which may be the user's project; `hydrant_commit` is the
    commit of Hydrant.
    """
    head = _git("rev-parse", "HEAD")
    array, place = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        "world_size": world_size,
        # As squeue shows it; that of a job of an array has `_`.
        "slurm_job": f"{array}_{place}" if array and place else os.environ.get("SLURM_JOB_ID"),
        "hydrant": version(),
        "hydrant_commit": commit(),
        "git_commit": head,
        "git_dirty": None if head is None else bool(_git("status", "--porcelain", "--untracked-files=no")),
    }


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def figures(plan: Plan, row: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that are added to a row: figures of the compilation, and `perf/mfu`."""
    report = plan.compilation.report()
    compiled = {f"compile/{k}": v for k, v in report.summary().items()} if report.graphs else {}
    peak, rate = peak_flops(plan.world.device), row.get("perf/samples_per_second")
    if peak is None or rate is None or not plan.clock.costs.flops:
        return compiled
    return compiled | {"perf/mfu": plan.clock.costs.flops * rate / plan.world.world_size / peak}


def measurements(plan: Plan, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the part of summary.json about this process and the rows of the run."""
    performance = {key: typical_value(rows, f"perf/{key}") for key in _PERFORMANCE}
    performance["peak_memory_gib"] = peak_memory_gib(plan.world.device)
    return {
        "compile": plan.compilation.report().summary(),
        "perf": performance | {"training_seconds": training_seconds(rows)},
        "num_damaged_samples": plan.data.damaged.num_damaged,
        "data_files": plan.identity.data_files,
    }


def training_seconds(rows: Sequence[Mapping[str, Any]], after: int = 0) -> float | None:
    """Return the seconds of all updates after `after` up to the last one that was logged, over all starts of the run.

    The time of evaluations and checkpoints does not count; that of the first updates, which may compile, does. None:
    nothing was logged.
    """
    total, num_updates = 0.0, after
    for row in rows:
        if row["num_updates"] > after and (rate := row.get("perf/updates_per_second")):
            total += (row["num_updates"] - num_updates) / rate
            num_updates = row["num_updates"]
    return total if num_updates > after else None


def batch_sizes_text(plan: Plan) -> str:
    """Return the number of samples per update, and where it changes: `64 (from update 1,000 on 128)`."""
    sizes = plan.spec.batch_sizes
    changes = [f"from update {n:,} on {size:,}" for n, size in zip(sizes.starts, sizes.values, strict=True)]
    return f"{sizes.values[0]:,}" + (f" ({', '.join(changes[1:])})" if changes[1:] else "")


def is_shown(plan: Plan, num_updates: int) -> bool:
    """Return whether the terminal shows the evaluation after these updates; train.log has every one."""
    number = plan.intervals.eval_every.count(num_updates)
    return num_updates in (0, plan.clock.total_updates) or number % evaluations_per_line(plan) == 0


def evaluations_per_line(plan: Plan) -> int:
    return max(math.ceil(plan.intervals.eval_every.count(plan.clock.total_updates) / _MAX_EVALUATIONS), 1)


def end_lines(
    job: Job, seconds: float, summary: Mapping[str, Any], rows: Sequence[dict[str, Any]] = (), start: int = 0
) -> dict[str, str]:
    """Return how long the run took, where it is, and the commands that continue, by the labels of the lines.

    Args:
        seconds: since the command began.
        summary: summary.json.
        rows: of metrics.jsonl.
        start: the update where the command began.
    """
    folder, since = relative(job.folder), [row for row in rows if row["num_updates"] > start]
    rate, trained_since = typical_value(since, "perf/updates_per_second"), training_seconds(since, start)
    speed = "" if rate is None else f" with start and evaluations, median {number(rate, 3)} updates/s"
    speed += f" since update {start}" if start and rate is not None else ""
    trained = (summary.get("perf") or {}).get("training_seconds")
    asked = Duration.parse(job.config["duration"], "duration")
    if asked.unit == "s" and trained is not None:
        in_all = " in all" if start else ""
        speed += f"; trained for {number(trained)} s{in_all}, asked for {number(float(asked.amount))} s"
    training = "" if trained_since is None else f"{format_duration(trained_since)} training of "
    lines = {"duration": training + format_duration(seconds) + speed, "run folder": folder}
    if (job.folder / run_folder.CURVES_PICTURE).exists():
        lines["curves"] = f"{folder}/{run_folder.CURVES_PICTURE}"
    return lines | next_commands(job, summary)


def next_commands(job: Job, summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the commands that continue after a finished run, by the labels of the lines."""
    lines = dict[str, str]()
    if job.call or job.sweep_folder:  # Python has methods for them, and a sweep is compared as a whole
        return lines
    folder, parent, best = relative(job.folder), relative(job.folder.parent), summary.get("best") or {}
    run, is_last = run_folder.RunFolder(job.folder), best.get("num_updates") == summary.get("num_updates")
    is_other = not is_last or is_averaged(best.get("metric", ""))
    weights = " --weights best" if is_other and (run.checkpoints / "best").exists() else ""
    if run.newest_checkpoint is not None:
        lines["evaluate"] = f"hydrant evaluate {shlex.quote(folder)}{weights}"
    # `debug` only tries a config.
    if job.choices.get("debug") is None and "compare" in entry_points("hydrant.commands"):
        lines["compare"] = f"hydrant compare {shlex.quote(parent)}"
    return lines


def result_text(state: TrainState, total_updates: int, rows: list[dict[str, Any]]) -> str:
    """Return the number of updates, the last and the best value of the deciding metric, and why a run ended early."""
    why = "pruned by the study" if state.is_pruned else state.end_reason or "no new best within patience"
    text = f"{state.num_updates} update{'s' * (state.num_updates != 1)}"
    text += f" ({why})" if state.num_updates < total_updates else ""
    if state.best is not None:
        shown = run_folder.result_values({"best": state.best, "metrics": last_values(rows)})
        text += f", {shown} at update {state.best['num_updates']}"
    return text
