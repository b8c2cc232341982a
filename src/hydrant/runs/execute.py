"""Execute one run, from its resolved config to its exit status: the folder, the ranks, the start; then its `Session`:
train, save, stop, end.
"""

import contextlib
import functools
import math
import signal
from collections.abc import Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydrant.config.groups import is_passed
from hydrant.data.splits import TEST
from hydrant.errors import ConfigError, FolderLost, HydrantError, Interrupted, concerns, log, log_errors
from hydrant.runs import resume
from hydrant.runs.folder import LOG, PROFILE, SUMMARY, RunFolder, RunStatus, mark
from hydrant.runs.job import Job, RunResult, first_failure, report, settings_in_run, unexpected_failure
from hydrant.runs.lock import exclusive
from hydrant.runs.log_setup import discard_log, log_to
from hydrant.runs.ranks import is_launched_rank, launch_ranks, needs_ranks
from hydrant.runs.record import History
from hydrant.runs.reporter import NullRunReporter, RunReporter, next_commands
from hydrant.safety.targets import locate
from hydrant.signals import StopRequest, ignore_stop_signals, signal_name
from hydrant.tasks.base import explain_unknown_class
from hydrant.terminal.console import relative, say, say_fields, show_activity
from hydrant.terminal.text import format_metric
from hydrant.trackers import trackers_warmed_up
from hydrant.training import saved_run
from hydrant.training.checkpoint.folder import Retention
from hydrant.training.checkpoint.manager import CheckpointManager
from hydrant.training.checkpoint.storage import SavedCheckpoint
from hydrant.training.checkpoint.weights import check_fits
from hydrant.training.costs import TRAINING_REMEDY, explain_out_of_memory
from hydrant.training.distributed.env import is_started_as_rank
from hydrant.training.distributed.watchdog import Watchdog
from hydrant.training.distributed.world import World
from hydrant.training.loop import is_over, train
from hydrant.training.prepare.build import build, prepare
from hydrant.training.prepare.micro_batch import find_micro_batch_size, time_updates
from hydrant.training.reports import evaluate_splits, log_row
from hydrant.training.trainer import Plan, Trainer, TrainState


def execute(job: Job) -> RunResult:
    """Run a job in this process, or on ranks that it starts. Errors are in the result, the log and the summary."""
    try:
        if needs_ranks(job):
            return launch_ranks(job)
        world = World.from_launcher()
        seconds = timeout_seconds(job.config)
        with world.process_group(seconds) as membership, contextlib.ExitStack() as stack:
            world.on_rank_zero(lambda: stack.enter_context(exclusive(job.folder)))
            stack.enter_context(log_to(job.folder / LOG, world.rank))
            stack.enter_context(settings_in_run(job))
            watchdog = Watchdog(world, seconds, functools.partial(_report_hang, job, world))
            stack.enter_context(watchdog)
            if is_started_as_rank():
                stack.callback(ignore_stop_signals)  # the rank only returns its result from here on
            result = _start(job, world, watchdog)
            membership.has_failed = result.exit_status != 0
            return result
    except KeyboardInterrupt:  # before the handler of StopRequest is set, or when everything is written
        return RunResult.preempted(signal.SIGINT, "stopped by SIGINT")
    except HydrantError as error:
        return RunResult.from_error(error)
    except BaseException as error:  # a part of the user may raise anything, such as GeneratorExit
        return unexpected_failure(error, job)


def _report_hang(job: Job, world: World, error: HydrantError, stacks: str) -> None:
    """Log a hang and mark the run as failed, from any rank: rank 0, which has the log, may hang itself."""
    with contextlib.nullcontext() if world.is_rank_zero else log_to(job.folder / LOG):
        log.debug("%s\n%s", error, stacks)
    if not is_launched_rank():
        report(RunResult.from_error(error))
    with log_errors(SUMMARY):
        mark(job.folder, RunStatus.FAILED, {"type": type(error).__name__, "message": str(error)})


def _start(job: Job, world: World, watchdog: Watchdog) -> RunResult:
    """Prepare the run at its starting point, then run it."""
    try:
        start = world.broadcast_from_rank_zero(lambda: resume.starting_point(job.config, job.folder))
        if start.is_finished:
            return already_finished(job, start, world)
        config = resolve_micro_batch_size(job.config, start, world)
        job = replace(job, config=config)
        show_activity("preparing the data and the model")
        with contextlib.ExitStack() as prepared:
            world.on_rank_zero(lambda: prepared.enter_context(trackers_warmed_up(config)))
            plan = prepare_timed(keep_micro_batch_size(config, start, world), start)
            state = prepare_start(plan, start)
            with StopRequest() as stop:
                session = Session(job, plan, start, state, watchdog)
                prepared.close()
                return session.run(stop)
    except (Exception, SystemExit) as error:
        return start_failure(error, job, world)


def start_failure(error: BaseException, job: Job, world: World) -> RunResult:
    """Return the result of a run that could not start, and log why. A refused config leaves no train.log."""
    if not isinstance(error, HydrantError):
        log.debug("the run could not start", exc_info=error)
    result = first_failure(error, job.folder, world)
    if result.exit_status == ConfigError.exit_status:
        discard_log(job.folder / LOG)
    return result


def resolve_micro_batch_size(
    config: Mapping[str, Any], start: resume.Start, world: World
) -> Mapping[str, Any]:
    """Replace `micro_batch_size: auto` by a number. A run that continues keeps the size it has. All ranks call it."""
    if config["micro_batch_size"] != "auto":
        return config
    if start.checkpoint is None:
        size = find_micro_batch_size(config, world)
    else:
        size = resume.saved_config(start.run, "resume").get("micro_batch_size")  # rank 0 has read it
    return {**config, "micro_batch_size": size}


def keep_micro_batch_size(config: Mapping[str, Any], start: resume.Start, world: World) -> Mapping[str, Any]:
    """Return the config with the micro-batch size that a run has, if it continues on ranks that can share it."""
    sizes = config["global_batch_size"]
    if config["micro_batch_size"] is not None or start.checkpoint is None or sizes == "all":
        return config
    size = saved_run.saved_state(start.checkpoint).micro_batch_size
    shared = math.gcd(*(sizes.values() if isinstance(sizes, Mapping) else [sizes]))
    of_rank = shared // world.world_size
    is_changed = any(key.startswith(("micro_batch_size", "global_batch_size")) for key in start.changes)
    if size is None or is_changed or of_rank == size or of_rank % size:
        return config
    log.info("micro-batches of %d samples, as before, although the number of ranks has changed", size)
    return {**config, "micro_batch_size": size}


def prepare_timed(config: Mapping[str, Any], start: resume.Start) -> Plan:
    """Prepare a run. If durations are in seconds, measure how long its updates take; all ranks call it.

    A run that continues keeps the times from its beginning, so that its horizon and its schedules stay the same.
    """
    saved = {} if start.checkpoint is None else saved_run.saved_state(start.checkpoint).update_seconds
    known = {int(size): seconds for size, seconds in saved.items()}
    plan = prepare(config, update_seconds=known)
    if not (sizes := plan.clock.unmeasured_sizes):
        return plan
    show_activity("measuring how long an update takes")
    measured = time_updates(plan, sizes)
    for size, seconds in measured.items():
        log.info("an update of %d samples takes %.4g s, which durations in seconds count by", size, seconds)
    return prepare(config, update_seconds={**known, **measured})


def prepare_start(plan: Plan, start: resume.Start) -> TrainState:
    """Load the initial weights, if any, check that a checkpoint fits the plan, and return the state where it begins.

    Raises:
        ConfigError: they belong to another run, or another config would train no update of it.
    """
    config, state = plan.config, TrainState()
    if start.weights is not None:
        start.weights.load(plan.task.model, "init_from", strict=config["init_strict"])
        log.info("weights from %s", start.weights)
        if (checkpoint := start.weights.checkpoint) is not None:
            saved_run.take_trained_outside_model(plan.task, SavedCheckpoint(checkpoint))
    if start.checkpoint is not None:
        check_fits(start.checkpoint.path, plan.task.model, "resume")
        state = continued_state(plan, start, start.checkpoint)
        if resume.is_for_training(start.changes) and not has_updates_left(plan, state):
            raise resume.no_update_left(start.run, start.changes)
        saved_run.check_optimizers(start.checkpoint, plan.task, plan.optimizers)
        saved_run.check_ranks(plan.data.train, start.checkpoint, plan.world.world_size)
        saved = saved_run.saved_identity(start.checkpoint)
        saved.check_unchanged(plan.identity, is_strict=config["resume_strict"])
        old_batch_size = resume.saved_config(start.run, "resume")["global_batch_size"]
        # After the samples, on whose number the sizes may depend.
        saved_run.check_batch_sizes(start.checkpoint, old_batch_size, plan.clock)
    saved_run.check_stream(plan.data.train, is_continued=start.checkpoint is not None)
    measured = plan.clock.update_seconds.measured.items()
    return replace(state, update_seconds={str(size): seconds for size, seconds in measured})


def has_updates_left(plan: Plan, state: TrainState) -> bool:
    """Return whether a run that continues here has updates left. If hooks have ended it, they decide again."""
    num_updates = state.num_updates
    has_stalled = plan.early_stopping.has_stalled(state.best, num_updates, state.validated_since)
    return num_updates < plan.clock.total_updates and not (state.is_pruned or has_stalled)


def already_finished(job: Job, start: resume.Start, world: World) -> RunResult:
    summary = start.run.recorded
    if world.is_rank_zero:
        say(f"already finished: {relative(job.folder)}, {summary['num_updates']} updates; nothing to do")
        if passed := [group for group in ("model", "data", "task") if is_passed(job.config, group)]:
            say(
                f"  the code, samples and weights of {', '.join(passed)} are not compared: with others, give a new name"
            )
        say_fields(next_commands(job, summary))
    return RunResult.finished((summary.get("best") or {}).get("value"))


def continued_state(plan: Plan, start: resume.Start, checkpoint: SavedCheckpoint) -> TrainState:
    """Return the state of a checkpoint. If `best` has changed, the best evaluation so far is that of the new metric.
    If the validation samples have changed, there is none.

    The config of the folder does not tell it: a run that was killed soon after it continued has already replaced that.

    Raises:
        CheckpointError: it holds no state of a run.
        RecordError: a line of the metrics is damaged.
    """
    state, (metric, mode) = saved_run.saved_state(checkpoint), plan.early_stopping.judges_by
    judged_by = checkpoint.plain_state("judged_by")
    if judged_by != [metric, mode] or not {"best.metric", "best.mode"}.isdisjoint(start.changes):
        state.best = plan.early_stopping.best_of(_history(start, checkpoint).metrics())
    differences = saved_run.saved_identity(checkpoint).differences(plan.identity)
    if state.best is not None and "validated_by" in differences:
        metric = state.best["metric"]
        log.warning("the best %s is of other validation samples or batches; it begins anew", metric)
        state.best, state.validated_since = None, state.num_updates
    return state


def _history(start: resume.Start, checkpoint: SavedCheckpoint) -> History:
    return History(start.run, checkpoint.manifest.num_updates, checkpoint.manifest.rows)


class Session:
    """Owns the run folder for one run: start, train, finish. `environment` is described here if it is not given.

    Raises:
        ConfigError: the run folder cannot be written, or a tracker rejects its settings.
    """

    result: RunResult
    """How the run ended."""

    def __init__(
        self,
        job: Job,
        plan: Plan,
        start: resume.Start,
        state: TrainState,
        watchdog: Watchdog,
        environment: Mapping[str, Any] | None = None,
    ) -> None:
        self._job, self._plan, self._start, self._state = job, plan, start, state
        self._watchdog, self._world = watchdog, plan.world
        if job.listener is not None:
            path, arguments = job.listener
            plan.hooks.listen_first("job", locate(path, "")(**arguments))
        history = History(start.run) if start.checkpoint is None else _history(start, start.checkpoint)
        try:
            reporter = self._world.on_rank_zero(lambda: RunReporter(job, plan, history, environment))
        except OSError as error:
            if error.filename is not None and not concerns(error, job.folder):
                raise
            raise ConfigError("hydra.run.dir", f"{job.folder} cannot be written: {error}") from error
        self._reporter = reporter or NullRunReporter()
        config, every = job.config, plan.clock.interval(job.config["keep_every"], "keep_every")
        self._checkpoints = CheckpointManager(
            RunFolder(job.folder).checkpoints,
            Retention(config["keep_last"], plan.num_best, every),
            self._reporter,
            in_background=config["save_async"],
            timeout_seconds=timeout_seconds(config),
        )

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
        result = replace(result, value=(self._state.best or {}).get("value"))
        try:
            return self._finish(result)
        except KeyboardInterrupt:  # a second Ctrl-C: plots and the end of the tracker may be missing
            if result.status != RunStatus.FINISHED:
                return replace(result, exit_status=128 + (stop() or signal.SIGINT))
            self._reporter.note(status=RunStatus.PREEMPTED)
            return self._stopped_at_once("before everything was written", stop)

    @contextlib.contextmanager
    def _built(self, stop: StopRequest) -> Generator[Trainer]:
        """Build and restore the run, yield it to be trained, and do the work after training."""
        plan, state = self._plan, self._state
        if self._world.is_rank_zero:
            log.debug("the run begins")  # opens the log before its folder may be replaced
            plan.hooks.call("on_prepared", self._reporter)
            if plan.flops.uncounted:
                log.warning("%s", plan.flops.uncounted)
        with self._checkpoints:
            trainer = build(
                plan,
                state,
                logger=self._reporter,
                save=self._save,
                # If a background save failed, all ranks stop after the same update; the next save raises it on each.
                stop_signal=lambda: signal.SIGTERM if self._checkpoints.poll() else stop(),
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
        with saved_run.checkpoint_content(trainer) as content:
            self._checkpoints.save(num_updates, content, is_best=is_best, on_written=on_written)
        if self._plan.hooks.listens("on_checkpoint"):
            self._checkpoints.wait()
            if self._world.broadcast_from_rank_zero(path.exists):  # else the disk is full, which the log says
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
            changes = resume.describe_changes(start.changes)
            log.warning("the run continues with another config: %s", changes)
        if resume.is_for_training(start.changes):
            state.end_reason = None  # the hooks may now decide otherwise
        saved_run.restore(trainer, start.checkpoint)
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
        """Write the results and the reports, and end the trackers, however the run ended."""
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
        failed = replace(self._failure(error), value=result.value)
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
        return RunResult.preempted(signum, f"stopped by {signal_name(signum)} {how}; {effect}")

    def _how_to_continue(self, effect: str = "continues it") -> str:
        try:
            saved_run.check_stream(self._plan.data.train, is_continued=True)
        except ConfigError:
            return "it cannot be continued, because its stream of samples has no state_dict"
        return f"{self._job.same_command()} {effect}"

    def _failure(self, error: BaseException) -> RunResult:
        result = first_failure(error, self._job.folder, self._world)
        # A ConfigError fails the run too, because it has begun.
        return replace(result, status=RunStatus.FAILED, exit_status=1)


def timeout_seconds(config: Mapping[str, Any]) -> float:
    """Return how long a rank waits for the others."""
    return config["parallel"].get("timeout_seconds", 1800)  # options for one rank have no timeout


def _test_best(trainer: Trainer, checkpoint: Path | None) -> None:
    """Evaluate the best weights of a run on the test split, and log them in a row: `test/...`, `test_ema/...`.

    The row belongs to the last update; its `test/num_updates` is the update of the weights. The model may keep these
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
            saved_run.restore_weights(trainer, SavedCheckpoint(checkpoint))
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
