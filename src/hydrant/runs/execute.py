"""Execute one run, from its resolved config to its exit status: the folder, the ranks, the start."""

import contextlib
import dataclasses
import functools
import math
import signal
from collections.abc import Mapping
from typing import Any

from hydrant.config.groups import is_passed
from hydrant.errors import ConfigError, HydrantError, RankHung, log, log_errors
from hydrant.runs.folder import LOG, SUMMARY, mark_failed
from hydrant.runs.job import Job, RunResult, first_failure, report, settings_in_run, unexpected_failure
from hydrant.runs.lock import exclusive
from hydrant.runs.log_setup import discard_log, log_to
from hydrant.runs.ranks import is_launched_rank, launch_ranks, needs_ranks
from hydrant.runs.reporter import next_commands
from hydrant.runs.resume import Start, is_for_training, no_update_left, saved_config, starting_point
from hydrant.runs.session import continued_state, open_session, timeout_seconds
from hydrant.signals import StopRequest, ignore_stop_signals
from hydrant.terminal.console import relative, say, say_fields, show_activity
from hydrant.trackers.base import trackers_warmed_up
from hydrant.training import train_state
from hydrant.training.checkpoint.storage import SavedCheckpoint
from hydrant.training.checkpoint.weights import describe_misfits
from hydrant.training.distributed.env import is_started_as_rank
from hydrant.training.distributed.watchdog import Watchdog
from hydrant.training.distributed.world import World
from hydrant.training.prepare.build import prepare
from hydrant.training.prepare.micro_batch import find_micro_batch_size, time_updates
from hydrant.training.trainer import Plan, TrainState


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
        return RunResult.stopped(signal.SIGINT, "stopped by SIGINT")
    except HydrantError as error:
        return RunResult.from_error(error)
    except BaseException as error:  # a part of the user may raise anything, such as GeneratorExit
        return unexpected_failure(error, job)


def _report_hang(job: Job, world: World, error: RankHung, stacks: str) -> None:
    """Log a hang and mark the run as failed, from any rank: rank 0, which has the log, may hang itself."""
    with contextlib.nullcontext() if world.is_rank_zero else log_to(job.folder / LOG):
        log.debug("%s\n%s", error, stacks)
    if not is_launched_rank():
        report(RunResult.from_error(error))
    with log_errors(SUMMARY):
        mark_failed(job.folder, str(error), RankHung.__name__)


def _start(job: Job, world: World, watchdog: Watchdog) -> RunResult:
    """Prepare the run at its starting point, then run it."""
    try:
        start = world.broadcast_from_rank_zero(lambda: starting_point(job.config, job.folder))
        if start.is_finished:
            return already_finished(job, start, world)
        config = resolve_micro_batch_size(job.config, start, world)
        job = dataclasses.replace(job, config=config)
        show_activity("preparing the data and the model")
        with contextlib.ExitStack() as prepared:
            world.on_rank_zero(lambda: prepared.enter_context(trackers_warmed_up(config)))
            plan = prepare_timed(keep_micro_batch_size(config, start, world), start)
            prepare_start(plan, start)
            with StopRequest() as stop:
                session = open_session(job, plan, start, watchdog)
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


def resolve_micro_batch_size(config: Mapping[str, Any], start: Start, world: World) -> Mapping[str, Any]:
    """Replace `micro_batch_size: auto` by a number. A run that continues keeps the size it has. All ranks call it."""
    if config["micro_batch_size"] != "auto":
        return config
    if start.checkpoint is None:
        size = find_micro_batch_size(config, world)
    else:
        size = saved_config(start.run, "resume").get("micro_batch_size")  # rank 0 has read it
    return {**config, "micro_batch_size": size}


def keep_micro_batch_size(config: Mapping[str, Any], start: Start, world: World) -> Mapping[str, Any]:
    """Return the config with the micro-batch size that a run has, if it continues on ranks that can share it."""
    sizes = config["global_batch_size"]
    if config["micro_batch_size"] is not None or start.checkpoint is None or sizes == "all":
        return config
    size = train_state.saved_state(start.checkpoint).micro_batch_size
    shared = math.gcd(*(sizes.values() if isinstance(sizes, Mapping) else [sizes]))
    of_rank = shared // world.world_size
    is_changed = any(key.startswith(("micro_batch_size", "global_batch_size")) for key in start.changes)
    if size is None or is_changed or of_rank == size or of_rank % size:
        return config
    log.info("micro-batches of %d samples, as before, although the number of ranks has changed", size)
    return {**config, "micro_batch_size": size}


def prepare_timed(config: Mapping[str, Any], start: Start) -> Plan:
    """Prepare a run. If durations are in seconds, measure how long its updates take; all ranks call it.

    A run that continues keeps the times from its beginning, so that its horizon and its schedules stay the same.
    """
    saved = {} if start.checkpoint is None else train_state.saved_state(start.checkpoint).update_seconds
    known = {int(size): seconds for size, seconds in saved.items()}
    plan = prepare(config, update_seconds=known)
    if not (sizes := plan.clock.unmeasured_sizes):
        return plan
    show_activity("measuring how long an update takes")
    measured = time_updates(plan, sizes)
    for size, seconds in measured.items():
        log.info("an update of %d samples takes %.4g s, which durations in seconds count by", size, seconds)
    return prepare(config, update_seconds={**known, **measured})


def prepare_start(plan: Plan, start: Start) -> None:
    """Load the initial weights, if any, and check that a checkpoint fits the plan.

    Raises:
        ConfigError: they belong to another run, or another config would train no update of it.
    """
    config = plan.config
    if start.weights is not None:
        start.weights.load(plan.task.model, "init_from", strict=config["init_strict"])
        log.info("weights from %s", start.weights)
        if (checkpoint := start.weights.checkpoint) is not None:
            train_state.take_trained_outside_model(plan.task, SavedCheckpoint(checkpoint))
    if start.checkpoint is not None:
        if misfits := describe_misfits(start.checkpoint.path, plan.task.model):
            message = f"the weights in {start.checkpoint.path} belong to another model: {misfits}"
            raise ConfigError("resume", message, remedy="choose that model")
        state = continued_state(plan, start, start.checkpoint)
        if is_for_training(start.changes) and not has_updates_left(plan, state):
            raise no_update_left(start.run, start.changes)
        train_state.check_optimizers(start.checkpoint, plan.task, plan.optimizers)
        train_state.check_ranks(plan.data.train, start.checkpoint, plan.world.world_size)
        saved = train_state.DataIdentity.saved(start.checkpoint)
        saved.check_unchanged(train_state.DataIdentity.of(plan), is_strict=config["resume_strict"])
        old_batch_size = saved_config(start.run, "resume")["global_batch_size"]
        # After the samples, on whose number the sizes may depend.
        train_state.check_batch_sizes(start.checkpoint, old_batch_size, plan.clock)
    train_state.check_stream(plan.data.train, is_continued=start.checkpoint is not None)


def has_updates_left(plan: Plan, state: TrainState) -> bool:
    """Return whether a run that continues here has updates left. If hooks have ended it, they decide again."""
    num_updates = state.num_updates
    has_stalled = plan.early_stopping.has_stalled(state.best, num_updates, state.validated_since)
    return num_updates < plan.clock.total_updates and not (state.is_pruned or has_stalled)


def already_finished(job: Job, start: Start, world: World) -> RunResult:
    summary = start.run.recorded
    if world.is_rank_zero:
        say(f"already finished: {relative(job.folder)}, {summary['num_updates']} updates; nothing to do")
        if passed := [group for group in ("model", "data", "task") if is_passed(job.config, group)]:
            say(
                f"  the code, samples and weights of {', '.join(passed)} are not compared: with others, give a new name"
            )
        say_fields(next_commands(job, summary))
    return RunResult.finished((summary.get("best") or {}).get("value"))
