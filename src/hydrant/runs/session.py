"""`Session`: one run in its folder: train, save, stop, end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import signal
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from hydrant.data.splits import TEST
from hydrant.errors import ConfigError, FolderLost, HydrantError, Interrupted, concerns, log
from hydrant.runs.folder import PROFILE, RunFolder, RunStatus
from hydrant.runs.job import Job, RunResult, first_failure
from hydrant.runs.record import History
from hydrant.runs.reporter import NullRunReporter, RunReporter
from hydrant.runs.resume import Start, describe_changes
from hydrant.safety.targets import locate
from hydrant.signals import StopRequest, signal_name
from hydrant.tasks.base import explain_unknown_class
from hydrant.terminal.console import relative
from hydrant.terminal.text import format_metric
from hydrant.training.checkpoint.folder import Retention
from hydrant.training.checkpoint.manager import CheckpointManager, Rows
from hydrant.training.checkpoint.storage import SavedCheckpoint
from hydrant.training.costs import TRAINING_REMEDY, explain_out_of_memory
from hydrant.training.distributed.watchdog import Watchdog
from hydrant.training.loop import is_over, train
from hydrant.training.prepare.build import build
from hydrant.training.reports import evaluate_splits, log_row
from hydrant.training.train_state import (
    DataIdentity,
    check_stream,
    checkpoint_content,
    restore,
    restore_weights,
    saved_state,
)
from hydrant.training.trainer import Plan, Trainer, TrainState


def open_session(
    job: Job, plan: Plan, start: Start, watchdog: Watchdog, environment: Mapping[str, Any] | None = None
) -> Session:
    """Begin a run that is prepared. `environment` is described here if it is not given.

    Raises:
        ConfigError: the run folder cannot be written, or a tracker rejects its settings.
    """
    try:
        return Session(job, plan, start, watchdog, environment)
    except OSError as error:
        if error.filename is not None and not concerns(error, job.folder):
            raise
        raise ConfigError("hydra.run.dir", f"{job.folder} cannot be written: {error}") from error


def continued_state(plan: Plan, start: Start, checkpoint: SavedCheckpoint) -> TrainState:
    """Return the state of a checkpoint. If `best` has changed, the best evaluation so far is that of the new metric.
    If the validation samples have changed, there is none.

    The config of the folder does not tell it: a run that was killed soon after it continued has already replaced that.

    Raises:
        CheckpointError: it holds no state of a run.
        RecordError: a line of the metrics is damaged.
    """
    state, (metric, mode) = saved_state(checkpoint), plan.early_stopping.judges_by
    of_earlier_version = [metric if state.best is None else state.best["metric"], mode]
    judged_by = checkpoint.plain_state("judged_by", default=of_earlier_version)
    if judged_by != [metric, mode] or not {"best.metric", "best.mode"}.isdisjoint(start.changes):
        state.best = plan.early_stopping.best_of(_history(start, checkpoint).metrics())
    differences = DataIdentity.saved(checkpoint).differences(DataIdentity.of(plan))
    if state.best is not None and "validated_by" in differences:
        state.best, state.validated_since = None, state.num_updates
    return state


def _history(start: Start, checkpoint: SavedCheckpoint) -> History:
    return History(start.run, checkpoint.manifest.num_updates, checkpoint.manifest.rows)


class Session:
    """Owns the run folder for one run: start, train, finish."""

    result: RunResult
    """How the run ended."""

    def __init__(
        self, job: Job, plan: Plan, start: Start, watchdog: Watchdog, environment: Mapping[str, Any] | None
    ) -> None:
        self._job, self._plan, self._start, self._watchdog = job, plan, start, watchdog
        if job.listener is not None:
            path, arguments = job.listener
            plan.hooks.listen_first("job", locate(path, "")(**arguments))
        self._world = plan.world
        measured = {str(size): seconds for size, seconds in plan.clock.update_seconds.measured.items()}
        self._state, history = TrainState(update_seconds=measured), History(start.run)
        if (checkpoint := start.checkpoint) is not None:
            self._state = continued_state(plan, start, checkpoint)
            self._state.update_seconds = measured
            if self._state.best is None and (best := saved_state(checkpoint).best) is not None:
                metric = best["metric"]
                log.warning("the best %s until here is of other validation samples; it begins anew", metric)
            history = _history(start, checkpoint)
        reporter = self._world.on_rank_zero(lambda: RunReporter(job, plan, history, environment))
        self._reporter = reporter or NullRunReporter()
        self._checkpoints = _checkpoint_manager(job, plan, self._reporter)

    def run(self, stop: StopRequest) -> RunResult:
        """Train and write how the run ended."""
        with self.opened(stop) as trainer:
            if trainer is not None:
                train(trainer)
        return self.result

    @contextlib.contextmanager
    def opened(self, stop: StopRequest) -> Generator[Trainer | None]:
        """Build the run, yield it to be trained, and write how it ended. Sets `result`.

        An error in the block ends the run and is not raised again. Yields None if the run could not be built and has
        already ended.
        """
        is_built = False
        try:
            explained = explain_out_of_memory(TRAINING_REMEDY)
            with explained, explain_unknown_class(), self._built(stop) as trainer:
                is_built = True
                yield trainer
            result = RunResult.finished()
        except Interrupted as error:
            message = f"{error}; {self._how_to_continue()}"
            result = RunResult(RunStatus.PREEMPTED, error.exit_status, message)
        except BaseException as error:  # a part of the user may raise anything, such as GeneratorExit
            result = self._result_of(error, stop)
        self.result = self._end(result, stop)
        if not is_built:
            yield None

    def _end(self, result: RunResult, stop: StopRequest) -> RunResult:
        self._watchdog.stop()
        result = dataclasses.replace(result, value=(self._state.best or {}).get("value"))
        try:
            return self._finish(result)
        except KeyboardInterrupt:  # a second Ctrl-C: plots and the end of the tracker may be missing
            if result.status != RunStatus.FINISHED:
                return dataclasses.replace(result, exit_status=128 + (stop() or signal.SIGINT))
            self._reporter.note(status=RunStatus.PREEMPTED)
            return self._stopped_at_once("before everything was written", stop)

    @contextlib.contextmanager
    def _built(self, stop: StopRequest) -> Generator[Trainer]:
        """Build and restore the run, yield it to be trained, and do the work after training."""
        plan, state = self._plan, self._state
        if self._world.is_rank_zero:
            plan.hooks.call("on_prepared", self._reporter)
            if plan.uncounted:
                log.warning("%s", plan.uncounted)
        with self._checkpoints:
            if (prepare_files := self._plan.data.before_training) is not None:
                prepare_files()
            trainer = build(
                plan,
                state,
                logger=self._reporter,
                save=self._save,
                # If a background save failed, all ranks stop after the same update; the next save raises it on each.
                stop_signal=lambda: signal.SIGTERM if self._checkpoints.has_failed() else stop(),
                watchdog=self._watchdog,
            )
            try:
                self._restore(trainer)
                self._note_formats(trainer)
                plan.hooks.call("on_start", trainer)
                if not is_over(trainer):  # else the start completes what a killed run did not write
                    plan.compilation.begin(trainer)
                profile = self._job.folder / PROFILE
                profiling = plan.profiler.record(profile, state.num_updates, self._reporter.file)
                with profiling if self._world.is_rank_zero else contextlib.nullcontext():
                    yield trainer
                if plan.config["test_at_end"]:
                    _test_best(trainer, self._best_checkpoint())
                plan.data.damaged.merge_ranks(self._world.all_gather)
                self._reporter.end_training()
            finally:
                trainer.close()

    def _save(self, trainer: Trainer, is_best: bool) -> None:
        self._plan.data.damaged.merge_ranks(self._world.all_gather)
        num_updates, best = trainer.state.num_updates, trainer.state.best
        path = self._checkpoints.folder.path_of(num_updates)
        on_written = functools.partial(self._reporter.checkpoint, path, num_updates=num_updates, best=best)
        with checkpoint_content(trainer) as content:
            self._checkpoints.save(num_updates, content, is_best=is_best, on_written=on_written)
        if self._plan.hooks.listens("on_checkpoint"):
            self._checkpoints.wait()
            if path.exists():  # else the disk is full, which the log says
                self._plan.hooks.call("on_checkpoint", trainer, path)
                log_row(trainer, {})

    def _best_checkpoint(self) -> Path | None:
        """Return the best checkpoint when it is on disk; None if the last update is the best, or nothing is saved."""
        self._checkpoints.wait()
        best = self._state.best
        if best is None or best["num_updates"] == self._state.num_updates:
            return None
        path = self._checkpoints.folder.path_of(best["num_updates"])
        return path if self._world.broadcast_from_rank_zero(path.exists) else None

    def _restore(self, trainer: Trainer) -> None:
        """Restore the checkpoint where the run continues, if any, and roll the folder back to it."""
        start, state = self._start, trainer.state
        if start.checkpoint is None:
            return
        log.info("continuing from %s at update %d", relative(start.checkpoint.path), state.num_updates)
        if start.changes:
            changes = describe_changes(start.changes)
            log.warning("resume_strict=false: the run continues with another config: %s", changes)
            state.end_reason = None  # the hooks may now decide otherwise
        fields = {key.rpartition(".")[2] for key in start.changes if "optimizer" in key.split(".")}
        restore(trainer, start.checkpoint, fields)
        best = None if state.best is None else state.best["num_updates"]
        folder, foreign = self._checkpoints.folder, start.checkpoint.path if start.is_foreign else None
        self._world.on_rank_zero(lambda: folder.roll_back_to(state.num_updates, best, foreign=foreign))

    def _note_formats(self, trainer: Trainer) -> None:
        """Record in which format the optimizers orthogonalise, which the machine or the checkpoint has chosen."""
        optimizers = [entry.optimizer for entry in trainer.optimizers.entries.values()]
        formats = {optimizer.param_groups[0].get("dtype") for optimizer in optimizers} - {None}
        if formats:
            self._reporter.note(orthogonalized_in=", ".join(sorted(map(str, formats))))
        if "float32" in formats:
            chosen = {optimizer.defaults.get("dtype") for optimizer in optimizers}
            is_auto = self._start.checkpoint is None and "float32" not in chosen
            reason = ", as optimizer.dtype=auto does on a CPU without bfloat16" if is_auto else ""
            log.info("matrices are orthogonalised in float32%s", reason)

    def _finish(self, result: RunResult) -> RunResult:
        """Write the results, the plots and the end of the tracker, however the run ended."""
        if result.message:
            log.debug("%s", result.message)
        try:
            self._reporter.conclude(result, self._state)
        except (OSError, HydrantError) as error:
            result = self._failed_to_write(error, result)
        try:
            self._reporter.close(result)
        except (OSError, FolderLost) as error:
            result = self._failed_to_write(error, result)
        return result

    def _failed_to_write(self, error: Exception, result: RunResult) -> RunResult:
        failed = dataclasses.replace(self._failure(error), value=result.value)
        self._reporter.note(status=failed.status, num_updates=self._state.num_updates, error=failed.error)
        return failed

    def _result_of(self, error: BaseException, stop: StopRequest) -> RunResult:
        # After a second Ctrl-C, an error may only mean that other ranks have stopped.
        if stop.is_urgent or isinstance(error, KeyboardInterrupt):
            return self._stopped_at_once("without saving", stop)
        log.debug("the run failed", exc_info=error)
        return self._failure(error)

    def _stopped_at_once(self, how: str, stop: StopRequest) -> RunResult:
        newest = RunFolder(self._job.folder).newest_checkpoint
        if newest is None:
            effect = f"{self._job.same_command()} starts again"
        else:
            effect = self._how_to_continue(f"continues from {newest.name}")
        signum = stop() or signal.SIGINT
        return RunResult.stopped(signum, f"stopped by {signal_name(signum)} {how}; {effect}")

    def _how_to_continue(self, effect: str = "continues it") -> str:
        try:
            check_stream(self._plan.data.train, is_continued=True)
        except ConfigError:
            return "it cannot be continued, because its stream of samples has no state_dict"
        return f"{self._job.same_command()} {effect}"

    def _failure(self, error: BaseException) -> RunResult:
        result = first_failure(error, self._job.folder, self._world)
        # A ConfigError fails the run too, because it has begun.
        return dataclasses.replace(result, status=RunStatus.FAILED, exit_status=1)


def _checkpoint_manager(job: Job, plan: Plan, rows: Rows) -> CheckpointManager:
    config = job.config
    every = plan.clock.interval(config["keep_every"], "keep_every")
    return CheckpointManager(
        RunFolder(job.folder).checkpoints,
        Retention(config["keep_last"], config["keep_best"], every),
        rows,
        in_background=config["save_async"],
        timeout_seconds=timeout_seconds(config),
    )


def timeout_seconds(config: Mapping[str, Any]) -> float:
    """Return how long a rank waits for the others."""
    return config["parallel"].get("timeout_seconds", 1800)  # options for one rank have no timeout


def _test_best(trainer: Trainer, checkpoint: Path | None) -> None:
    """Evaluate the best weights of a run on the test split, and log them in a row: `test/...`, `test_ema/...`.

    The row belongs to the last update; its `test/num_updates` is the update of the weights. The model keeps these
    weights, so nothing may train or save it afterwards. Hooks do not see the row.

    Args:
        trainer: the run. All ranks call this together.
        checkpoint: the best checkpoint; None: the weights of the last update are tested, because there is no other.
    """
    num_updates, best = trainer.state.num_updates, trainer.state.best
    trainer.enter("evaluation")
    with trainer.optimizers.eval_weights():
        if checkpoint is not None and best is not None:
            num_updates = best["num_updates"]
            restore_weights(trainer, SavedCheckpoint(checkpoint))
        row = evaluate_splits(trainer, (TEST,))
    trainer.enter("other")
    if trainer.plan.world.is_rank_zero:
        shown = ", ".join(f"{key} {format_metric(value)}" for key, value in row.items())
        log.info("test of %s: %s", _described(num_updates, best), shown)
    log_row(trainer, {**row, f"{TEST}/num_updates": num_updates})


def _described(num_updates: int, best: Mapping[str, Any] | None) -> str:
    """Return in words which weights are tested."""
    if best is None:
        return f"the last update, {num_updates}"
    if best["num_updates"] == num_updates:
        return f"update {num_updates}, the best {best['metric']}"
    return f"the last update, {num_updates}, because the best, {best['num_updates']}, is not saved"
