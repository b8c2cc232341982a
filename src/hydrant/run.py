"""One run, from its resolved config to its exit status: the folder, starting, resuming, stopping."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path

from hydrant import checkpoint, seeding
from hydrant.build import Prepared, build, prepare
from hydrant.checkpoint import Checkpoint, Checkpoints
from hydrant.errors import ConfigError, HydrantError, Interrupted, first_line, location, typed_line
from hydrant.job import Job, Result
from hydrant.journal import Ending, RunJournal
from hydrant.locking import exclusive
from hydrant.logs import log, logging_to
from hydrant.loop import Run, RunState, train
from hydrant.profiling import count_parameters
from hydrant.resume import Start, starting_point
from hydrant.signals import StopRequest
from hydrant.trackers.record import read_summary


def execute(job: Job) -> Result:
    """Run a job in this process. Never raises: what goes wrong is in the result, the log and the summary."""
    try:
        with exclusive(job.folder), logging_to(job.folder / "train.log"):
            return _execute(job)
    except KeyboardInterrupt:  # again, while the run ended, or before it could note the request
        is_finished = read_summary(job.folder).get("status") == "finished"
        what = "the run is finished, its trackers may miss the end" if is_finished else "nothing was trained"
        return Result(128 + signal.SIGINT, None, f"stopped by SIGINT: {what}")
    except HydrantError as error:
        return Result(error.exit_status, None, str(error))
    except Exception as error:  # of no part of the config, else its key would be named
        told = f"{typed_line(error)} (at {location(error)}); {job.folder / 'train.log'} has the traceback"
        return Result(1, None, told)


def _execute(job: Job) -> Result:
    try:
        start = starting_point(job.config, job.folder)
        if start.is_finished:
            return _already_finished(job.folder)
        prepared = prepare(job.config)
        start.check_fits(prepared.task.model)
        with StopRequest() as stop:
            return _open(job, prepared, start).run(stop)
    except HydrantError:
        raise
    except Exception as error:
        log.debug("the run could not start", exc_info=error)
        raise


def _open(job: Job, prepared: Prepared, start: Start) -> _Session:
    try:
        return _Session(job, prepared, start)
    except OSError as error:
        raise ConfigError("hydra.run.dir", f"{job.folder} cannot be written: {error}") from error


class _Session:
    """A run while it has its folder: what it does there, and when."""

    def __init__(self, job: Job, prepared: Prepared, start: Start) -> None:
        self._job, self._prepared, self._start = job, prepared, start
        device = prepared.world.device
        self._loaded = None if start.checkpoint is None else checkpoint.load(start.checkpoint, device)
        counters = {} if self._loaded is None else self._loaded.training["state"]
        self._state = RunState(**counters)
        self._checkpoints = Checkpoints(job.folder / "checkpoints", keep_last=job.config["keep_last"])
        job.folder.mkdir(parents=True, exist_ok=True)
        foreign = start.checkpoint if start.is_foreign else None
        history = job.folder if foreign is None else foreign.parents[1]
        self._journal = RunJournal(job, prepared, self._state.num_updates, history)
        if foreign is not None:
            best = self._state.best
            self._checkpoints.adopt(foreign, None if best is None else best["num_updates"])

    def run(self, stop: StopRequest) -> Result:
        try:
            self._train(stop)
            ending = Ending("finished", 0, "", None)
        except Interrupted as error:
            ending = Ending("preempted", error.exit_status, f"{error}; {self._again()} continues it", None)
        except KeyboardInterrupt:
            ending = Ending("preempted", 128 + signal.SIGINT, self._without_saving(), None)
        except Exception as error:
            log.debug("the run failed", exc_info=error)
            ending = _failed(error)
        return self._finish(ending)

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
        run = build(prepared, self._journal, self._save, stop)
        run.state = state
        self._restore(run)
        try:
            train(run)
        finally:
            run.stream.close()

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
        self._journal.note(num_updates=run.state.num_updates, best=run.state.best)

    def _restore(self, run: Run) -> None:
        loaded, start = self._loaded, self._start
        if start.weights is not None:
            log.info("weights from %s", start.weights)
            run.model.load_state_dict(checkpoint.load_part(start.weights, "model", run.world.device))
        if loaded is None or start.checkpoint is None:
            return
        log.info("continuing from %s at update %d", _relative(start.checkpoint), run.state.num_updates)
        run.model.load_state_dict(loaded.model)
        run.task.load_state_dict(loaded.training["task"], strict=False)  # what is the task's own
        run.optimization.load_state_dict(loaded.training["optimization"])
        run.precision.load_state_dict(loaded.training["precision"])
        run.meter.load_state_dict(loaded.training["meter"])
        seeding.set_host_state(loaded.training["host"])
        best = run.state.best  # a kill may have come before the link moved
        if best is not None and not self._checkpoints.mark_best(best["num_updates"]):
            log.warning("the best checkpoint so far, of update %d, is not there", best["num_updates"])
        self._loaded = None  # the device has it once

    def _finish(self, ending: Ending) -> Result:
        """Write what belongs to the end of a run, however it ended."""
        state = self._state
        if ending.message:
            log.debug("%s", ending.message)
        try:
            self._journal.conclude(ending, state)
        except OSError as error:
            ending = _failed(error)
        self._journal.close(ending)
        return Result(ending.exit_status, None if state.best is None else state.best["value"], ending.message)

    def _without_saving(self) -> str:
        newest = self._checkpoints.newest()
        what = "starts again" if newest is None else f"continues from {newest.name}"
        return f"stopped by SIGINT without saving; {self._again()} {what}"

    def _again(self) -> str:
        """The command that finds this run folder again."""
        if self._job.config["name"] is not None:
            return "the same command"
        folder, in_sweep = self._job.folder, self._job.is_in_sweep
        key, where = ("hydra.sweep.dir", folder.parent) if in_sweep else ("hydra.run.dir", folder)
        return f"the same command with {key}={_relative(where)}"


def _failed(error: Exception) -> Ending:
    known = isinstance(error, HydrantError)
    message = str(error) if known else typed_line(error)
    described = {"type": type(error).__name__, "message": first_line(error)}
    return Ending("failed", error.exit_status if known else 1, message, described)


def _already_finished(folder: Path) -> Result:
    summary = read_summary(folder)
    print(f"already finished: {_relative(folder)}, {summary['num_updates']} updates; nothing to do")
    return Result(0, (summary.get("best") or {}).get("value"), "")


def _relative(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
