"""One run, from its resolved config to its exit status: the folder, starting, resuming, stopping."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydrant import checkpoint
from hydrant.build import Prepared, build, prepare
from hydrant.distributed import World
from hydrant.earlier import told_of
from hydrant.ending import Ending, failure, unforeseen
from hydrant.errors import ConfigError, HydrantError, Interrupted, RankHung
from hydrant.job import Job, Result, relative, report
from hydrant.journal import NoRunJournal, RunJournal
from hydrant.launchers import is_started_as_rank
from hydrant.launching import is_started_here, launch, starts_ranks, tell_hearing
from hydrant.locking import exclusive
from hydrant.logs import log, logging_to, told
from hydrant.loop import show_inputs, train
from hydrant.memory import TRAINING, memory_told
from hydrant.micro_batch import settled
from hydrant.parts import Run, RunState
from hydrant.profiling import count_parameters
from hydrant.pruning import pruning_of
from hydrant.resume import Start, starting_point
from hydrant.runs import mark_failed
from hydrant.signals import StopRequest, heed_only_sigint
from hydrant.state import check_optimizers, content_of, restore
from hydrant.trackers.record import read_summary
from hydrant.trial import try_compiled
from hydrant.watchdog import Watchdog


def execute(job: Job) -> Result:
    """Run a job in this process. Never raises: what goes wrong is in the result, the log and the summary."""
    try:
        if starts_ranks(job):
            return launch(job)
        world = World.from_launcher()
        timeout_seconds = _timeout_seconds(job.config)
        with world.group(timeout_seconds), contextlib.ExitStack() as held:
            world.on_rank_zero(lambda: held.enter_context(exclusive(job.folder)))
            held.enter_context(logging_to(job.folder / "train.log", world.rank))
            watchdog = Watchdog(world, timeout_seconds, functools.partial(_tell_hung, job, world))
            held.enter_context(watchdog)
            if is_started_as_rank():
                held.callback(heed_only_sigint)  # when it has only to say how it ended
            return _execute(job, world, watchdog)
    except KeyboardInterrupt:  # before it could note the request, or when all is written
        return Result(128 + signal.SIGINT, None, "stopped by SIGINT")
    except HydrantError as error:
        return Result(error.exit_status, None, str(error))
    except (Exception, SystemExit) as error:  # of no part of the config, else its key would be named
        return unforeseen(error, job)


def _tell_hung(job: Job, world: World, error: RankHung, stacks: str) -> None:
    """In the name of all ranks: rank 0, which has the log, may be the one that stands still."""
    with contextlib.nullcontext() if world.is_rank_zero else logging_to(job.folder / "train.log"):
        log.debug("%s\n%s", error, stacks)
    if not is_started_here():
        report(Result(1, None, str(error)))
    with told("summary.json"):
        mark_failed(job.folder, str(error), RankHung.__name__)


def _execute(job: Job, world: World, watchdog: Watchdog) -> Result:
    try:
        start = world.from_rank_zero(lambda: starting_point(job.config, job.folder))
        if start.is_finished:
            return _already_finished(job.folder, world)
        config = settled(job.config, start, world)
        job = dataclasses.replace(job, config=config)
        prepared = prepare(job.config)
        start.prepare(prepared.task.model, job.config)
        if start.checkpoint is not None:
            check_optimizers(start.checkpoint, prepared.task, prepared.optimization)
        with StopRequest() as stop:
            pids = world.gather(os.getpid())
            if world.is_rank_zero:
                tell_hearing(pids)
            return _open(job, prepared, start, watchdog).run(stop)
    except (Exception, SystemExit) as error:
        if not isinstance(error, HydrantError):  # one that is refused leaves no log
            log.debug("the run could not start", exc_info=error)
        return _result(failure(error, job.folder, world))


def _open(job: Job, prepared: Prepared, start: Start, watchdog: Watchdog) -> _Session:
    try:
        return _Session(job, prepared, start, watchdog)
    except OSError as error:
        raise ConfigError("hydra.run.dir", f"{job.folder} cannot be written: {error}") from error


class _Session:
    """A run while it has its folder: what it does there, and when."""

    def __init__(self, job: Job, prepared: Prepared, start: Start, watchdog: Watchdog) -> None:
        self._job, self._prepared, self._start, self._watchdog = job, prepared, start, watchdog
        saved = {} if start.checkpoint is None else checkpoint.plain_state(start.checkpoint, "state")
        self._state, self._pruning = RunState(**saved), pruning_of(job.trial, prepared.world)
        self._checkpoints = _checkpoints(job, prepared)
        self._world = prepared.world
        self._foreign = start.checkpoint if start.is_foreign else None
        history = job.folder if self._foreign is None else self._foreign.parents[1]
        journal = self._world.on_rank_zero(
            lambda: RunJournal(job, prepared, self._state.num_updates, history)
        )
        self._journal = journal or NoRunJournal()

    def run(self, stop: StopRequest) -> Result:
        try:
            with memory_told(TRAINING):
                self._train(stop)
            ending = Ending("finished", 0, "", None)
        except Interrupted as error:
            message = f"{error}; {self._job.same_command()} continues it"
            ending = Ending("preempted", error.exit_status, message, None)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            ending = self._broken_off(error, stop)
        self._watchdog.stop()
        try:
            return self._finish(ending)
        except KeyboardInterrupt:  # again: what is only for looking at may be missing
            told = "stopped by SIGINT: the run is finished, its trackers may miss the end"
            return self._result(dataclasses.replace(ending, exit_status=130, message=ending.message or told))

    def _train(self, stop: StopRequest) -> None:
        prepared, state, profile = self._prepared, self._state, self._job.folder / "profile"
        total, trainable = count_parameters(prepared.task)
        log.info("run folder %s", relative(self._job.folder))
        log.info(
            "%d updates of %d samples (%.4g epochs) on %s; %s parameters%s",
            prepared.clock.total_updates,
            prepared.spec.global_batch_size,
            prepared.clock.epoch(prepared.clock.total_updates),
            prepared.world.device,
            f"{total:,}",
            "" if total == trainable else f", {trainable:,} trained",
        )
        with self._checkpoints:
            run = build(prepared, self._journal, self._save, lambda: self._stop_signal(stop))
            run.state, run.pruning = state, self._pruning
            run.watched_by(self._watchdog)
            try:
                self._continue(run)
                try_compiled(run)
                show_inputs(run)
                with run.profiler.watching(profile, state.num_updates, self._journal.file):
                    train(run)
                prepared.data.faults.gather(self._world)
            finally:
                run.stream.close()

    def _stop_signal(self, stop: StopRequest) -> int | None:
        # A failure in the background stops all ranks after the same update; the save then raises it on each.
        return signal.SIGTERM if self._checkpoints.has_failed() else stop()

    def _save(self, run: Run, is_best: bool) -> None:
        self._prepared.data.faults.gather(self._world)
        num_updates, best = run.state.num_updates, run.state.best
        written = functools.partial(self._journal.checkpoint, num_updates=num_updates, best=best)
        with content_of(run) as content:
            self._checkpoints.save(num_updates, content, is_best=is_best, written=written)

    def _continue(self, run: Run) -> None:
        """Put back what the checkpoint holds from which the run goes on, if there is one."""
        start, state = self._start, run.state
        if start.checkpoint is None:
            return
        log.info("continuing from %s at update %d", relative(start.checkpoint), state.num_updates)
        if start.changed:
            log.warning(
                "resume_strict=false: the run goes on with another config: %s", told_of(start.changed)
            )
        fields = {key.rpartition(".")[2] for key in start.changed if "optimizer" in key.split(".")}
        restore(run, start.checkpoint, fields)
        best = None if state.best is None else state.best["num_updates"]
        folder = self._checkpoints.folder
        run.world.on_rank_zero(lambda: folder.go_back_to(state.num_updates, best, foreign=self._foreign))

    def _finish(self, ending: Ending) -> Result:
        """Write what belongs to the end of a run, however it ended."""
        if ending.message:
            log.debug("%s", ending.message)
        try:
            self._journal.conclude(ending, self._state)
        except (OSError, HydrantError) as error:
            ending = self._failed(error)
            self._journal.note(status=ending.status, num_updates=self._state.num_updates, error=ending.error)
        self._journal.close(ending)
        return self._result(ending)

    def _result(self, ending: Ending) -> Result:
        return _result(ending, (self._state.best or {}).get("value"))

    def _broken_off(self, error: BaseException, stop: StopRequest) -> Ending:
        if stop.is_urgent or isinstance(error, KeyboardInterrupt):  # other ranks may have stopped just before
            return Ending("preempted", 128 + signal.SIGINT, self._without_saving(), None)
        log.debug("the run failed", exc_info=error)
        return self._failed(error)

    def _failed(self, error: BaseException) -> Ending:
        ending = failure(error, self._job.folder, self._world)
        return dataclasses.replace(ending, exit_status=1)  # by a ConfigError too: the run had begun

    def _without_saving(self) -> str:
        newest = checkpoint.newest(self._job.folder / "checkpoints")
        what = "starts again" if newest is None else f"continues from {newest.name}"
        return f"stopped by SIGINT without saving; {self._job.same_command()} {what}"


def _checkpoints(job: Job, prepared: Prepared) -> checkpoint.Checkpoints:
    config = job.config
    every = prepared.clock.cadence(config["keep_every"], "keep_every")
    keep = checkpoint.Retention(config["keep_last"], config["keep_best"], every)
    return checkpoint.Checkpoints(
        job.folder / "checkpoints",
        keep,
        in_background=config["save_async"],
        timeout_seconds=_timeout_seconds(config),
    )


def _timeout_seconds(config: Mapping[str, Any]) -> float:
    return config["parallel"].get("timeout_seconds", 1800)  # one rank waits for nobody


def _result(ending: Ending, value: float | None = None) -> Result:
    return Result(ending.exit_status, value, ending.message, (ending.error or {}).get("type", ""))


def _already_finished(folder: Path, world: World) -> Result:
    summary = read_summary(folder)
    if world.is_rank_zero:
        print(f"already finished: {relative(folder)}, {summary['num_updates']} updates; nothing to do")
    return Result(0, (summary.get("best") or {}).get("value"), "")
