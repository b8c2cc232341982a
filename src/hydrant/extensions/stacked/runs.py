"""Execute several runs at once in this process: updates are made for all lanes at once, the rest lane by lane."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from hydrant.clock import NOTHING, Due
from hydrant.errors import Interrupted
from hydrant.extensions.stacked.check import prepare_like
from hydrant.extensions.stacked.forward import LaneCompilation
from hydrant.extensions.stacked.stack import Stack
from hydrant.files.on_disk import raise_limit
from hydrant.runs import execute
from hydrant.runs.folder import LOG
from hydrant.runs.job import Job, RunResult, unexpected_failure
from hydrant.runs.lock import exclusive
from hydrant.runs.log_setup import current_log, log_to_file, log_to_terminal
from hydrant.runs.reporter import describe_environment
from hydrant.runs.resume import Start, starting_point
from hydrant.signals import StopRequest
from hydrant.training import loop
from hydrant.training.costs import explain_out_of_memory
from hydrant.training.distributed.watchdog import Watchdog
from hydrant.training.distributed.world import World
from hydrant.training.prepare.build import prepare
from hydrant.training.trainer import Plan, Trainer, TrainState
from hydrant.training.update import Update

T = TypeVar("T")

_REMEDY = "Train fewer runs at once: hydra.launcher.lanes=<number>"


def execute_stack(jobs: Sequence[Job]) -> list[RunResult]:
    """Run jobs of the same program at once; return their results. A single job runs as by `execute`."""
    if len(jobs) == 1:
        return [execute.execute(jobs[0])]
    raise_limit()
    world = World.from_launcher()
    lanes = [RunLane(job, world) for job in jobs]
    with world.process_group(execute.timeout_seconds(jobs[0].config)), log_to_terminal():
        try:
            _train(lanes)
        except KeyboardInterrupt as error:  # before the handler of StopRequest is set, or a second Ctrl-C
            for lane in lanes:
                lane.interrupt(error)
    return [lane.result for lane in lanes]


def _train(lanes: Sequence[RunLane]) -> None:
    like: Plan | None = None
    for lane in lanes:
        like = lane.prepare(like) or like
    environment = None if like is None else describe_environment(like.world.device, like.world.world_size)
    with StopRequest() as stop:
        for lane in lanes:
            lane.open(stop, environment)
        _train_lanes([lane for lane in lanes if lane.is_open], stop)


class RunLane:
    """A run that trains in a stack."""

    trainer: Trainer
    _start: Start
    _state: TrainState

    def __init__(self, job: Job, world: World) -> None:
        self._job, self._world = job, world
        self._plan: Plan | None = None
        self._folder = contextlib.ExitStack()  # its lock and its log
        self._session: execute.Session | None = None
        self._opened: contextlib.AbstractContextManager[Trainer | None] | None = None
        self.result = RunResult.preempted(signal.SIGINT, "stopped by SIGINT before it began")

    @property
    def is_open(self) -> bool:
        return self._opened is not None

    def prepare(self, like: Plan | None) -> Plan | None:
        """Lock the folder and prepare the run, on the data of another plan if there is one. Return the plan; None if
        the run is finished or cannot begin, with the reason in `result`.
        """
        job = self._job
        try:
            self._folder.enter_context(exclusive(job.folder))
            self._folder.enter_context(log_to_file(job.folder / LOG))
            with self.active():
                self._start = starting_point(job.config, job.folder)
                if self._start.is_finished:
                    self.result = execute.already_finished(job, self._start, self._world)
                    return None
                plan = prepare(job.config) if like is None else prepare_like(job.config, like)
                if like is None:
                    plan = dataclasses.replace(plan, compilation=LaneCompilation(plan.compilation))
                self._plan = plan
                self._state = execute.prepare_start(plan, self._start)
        except (Exception, SystemExit) as error:
            self._fail(error)
        return self._plan

    def open(self, stop: StopRequest, environment: Mapping[str, Any] | None) -> None:
        """Start the run, if it is prepared. `environment` is that of all lanes."""
        if self._plan is None:
            self._folder.close()
            return
        try:
            with self.active():
                self._session = execute.Session(
                    self._job, self._plan, self._start, self._state, Watchdog(), environment
                )
                self._opened = self._session.opened(stop)
                trainer = self._opened.__enter__()
        except (Exception, SystemExit) as error:
            self._fail(error)
            return
        if trainer is None:
            self.end()
        else:
            self.trainer = trainer

    def end(self, error: BaseException | None = None) -> None:
        """End the run, and give up its folder."""
        opened, self._opened = self._opened, None
        assert opened is not None and self._session is not None
        try:
            with self.active():
                opened.__exit__(type(error) if error else None, error, error.__traceback__ if error else None)
            self.result = self._session.result
        except (Exception, SystemExit) as raised:
            self.result = unexpected_failure(raised, self._job)
        self._session = self._plan = None
        self._folder.close()

    def interrupt(self, error: KeyboardInterrupt) -> None:
        """End the run at once, if it has not ended."""
        if self.is_open:
            self.end(error)
        self._folder.close()

    @contextlib.contextmanager
    def active(self) -> Generator[None]:
        token = current_log.set(self._job.folder / LOG)
        try:
            yield
        finally:
            current_log.reset(token)

    def _fail(self, error: BaseException) -> None:
        with self.active():
            self.result = execute.start_failure(error, self._job, self._world)
        self._plan = self._opened = None
        self._folder.close()


def _train_lanes(lanes: Sequence[RunLane], stop_signal: Callable[[], int | None]) -> None:
    """Train runs, each as `train` does, and end each of them.

    A run that ends early leaves the stack, which goes on with the others. Runs that continue from checkpoints of
    different updates join when the others have come as far.

    Args:
        lanes: runs of the same program.
        stop_signal: returns the signal that stops all runs; None while there is none.
    """
    waiting = {id(lane) for lane in lanes}  # those that have made no update yet
    try:
        for lane in lanes:
            _call(lane, loop.begin_training, lane.trainer)
        while running := _not_over(lanes):
            if (signum := stop_signal()) is not None:
                for lane in running:
                    if id(lane) in waiting:  # it has nothing to save
                        lane.end(Interrupted(signum, _num_updates(lane)))
                running = [lane for lane in running if lane.is_open]
            if not running:
                return
            first = min(map(_num_updates, running))
            later = [n for n in map(_num_updates, running) if n > first]
            together = [lane for lane in running if _num_updates(lane) == first]
            waiting -= set(map(id, together))
            began = time.perf_counter()
            _advance(together, min(later, default=None), stop_signal)
            _skip([lane for lane in running if lane not in together], time.perf_counter() - began)
    except BaseException as error:
        for lane in lanes:
            if lane.is_open:
                lane.end(error)
        if not isinstance(error, Exception | SystemExit):
            raise


def _advance(lanes: Sequence[RunLane], limit: int | None, stop_signal: Callable[[], int | None]) -> None:
    """Make updates until a run ends, or up to `limit` completed updates.

    An ended run stays in a compiled stack, unread, while more than half of the lanes train, because another number of
    lanes would be compiled again.
    """
    began = time.perf_counter()
    stack = Stack([lane.trainer for lane in lanes])
    _skip(lanes, time.perf_counter() - began)  # compiling is no training
    least = len(lanes) // 2 + 1 if stack.is_compiled else len(lanes)
    reported = stack.num_updates
    while len(_not_over(lanes)) >= least and stack.num_updates != limit:
        ends = _quiet_end(lanes) if limit is None else min(_quiet_end(lanes), limit)
        norms, dues = dict[str, Tensor](), [(NOTHING, False)] * len(lanes)
        if (signum := _advance_quietly(stack, ends, stop_signal)) is None:
            if stack.num_updates == limit:
                break
            dues = [_begin_update(lane) for lane in lanes]
            if not any(lane.is_open for lane in lanes):
                return
            shows_gradients = any(due.histogram or due.hooks for due, _ in dues)
            measure = any(due.log for due, _ in dues)
            with explain_out_of_memory(_REMEDY):
                norms = stack.update(measure=measure, show_gradients=shows_gradients)
            signum = stop_signal()
        _catch_up(stack, lanes, stack.num_updates - reported - 1)
        _report(lanes, dues, norms, signum)
        reported = stack.num_updates
    _catch_up(stack, lanes, stack.num_updates - reported)


def _quiet_end(lanes: Sequence[RunLane]) -> int:
    """Return the number of completed updates before the next one that is the last of a run or has something due."""
    ends = list[int]()
    for lane in lanes:
        if lane.is_open:
            trainer = lane.trainer
            num_updates = trainer.state.num_updates
            following = trainer.plan.intervals.following(num_updates)
            ends.append(num_updates if loop.is_last_update(trainer) else following - 1)
            ends.append(trainer.plan.clock.total_updates - 1)
    return min(ends)


def _advance_quietly(stack: Stack, end: int, stop_signal: Callable[[], int | None]) -> int | None:
    """Make updates after which nothing is due, up to `end` completed ones; return the signal that stops all runs."""
    while stack.num_updates < end:
        with explain_out_of_memory(_REMEDY):
            stack.update(measure=False)
        if (signum := stop_signal()) is not None:
            return signum
    return None


def _report(
    lanes: Sequence[RunLane],
    dues: Sequence[tuple[Due, bool]],
    norms: Mapping[str, Tensor],
    signum: int | None,
) -> None:
    """Do in each lane what is due after an update."""
    began, ends = time.perf_counter(), dict[int, float]()
    for n, (lane, (due, is_last)) in enumerate(zip(lanes, dues, strict=True)):
        if lane.is_open:
            lane.trainer.pace.skip(time.perf_counter() - began)  # the work of other lanes
            update = Update([], signum, "applied", {name: norm[n] for name, norm in norms.items()})
            _call(lane, _finish_update, lane.trainer, due, update, is_last=is_last)
            ends[id(lane)] = time.perf_counter()
    for lane in lanes:
        if lane.is_open:
            _skip([lane], time.perf_counter() - ends[id(lane)])


def _catch_up(stack: Stack, lanes: Sequence[RunLane], num_updates: int) -> None:
    """Give the lanes what the stack holds for them, and count the updates that they have not reported."""
    stack.sync()
    for lane in lanes:
        if lane.is_open:
            for _ in range(num_updates):
                lane.trainer.logger.advance()


def _skip(lanes: Sequence[RunLane], seconds: float) -> None:
    """Do not count this time as training of these lanes."""
    for lane in lanes:
        lane.trainer.pace.skip(seconds)


def _begin_update(lane: RunLane) -> tuple[Due, bool]:
    """Return what is due after the next update of a run, and whether it is its last one."""
    if not lane.is_open:
        return NOTHING, False
    is_last = loop.is_last_update(lane.trainer)
    return _call(lane, loop.begin_update, lane.trainer, is_last=is_last) or NOTHING, is_last


def _finish_update(trainer: Trainer, due: Due, update: Update, *, is_last: bool) -> None:
    # Also if a checkpoint could not be saved.
    stop = trainer.stop_signal() if update.stop is None else update.stop
    loop.finish_update(trainer, due, update._replace(stop=stop), is_last=is_last)


def _not_over(lanes: Sequence[RunLane]) -> list[RunLane]:
    """End the runs that have made their last update, and return those that go on."""
    for lane in lanes:
        if lane.is_open and loop.is_over(lane.trainer):
            _call(lane, loop.end_training, lane.trainer)
            if lane.is_open:
                lane.end()
    return [lane for lane in lanes if lane.is_open]


def _call(lane: RunLane, function: Callable[..., T], *arguments: object, **named: object) -> T | None:
    """Call a function for one run. An error ends this run alone."""
    try:
        with lane.active():
            return function(*arguments, **named)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a part of the user may raise anything, such as GeneratorExit
        lane.end(error)
        return None


def _num_updates(lane: RunLane) -> int:
    return lane.trainer.state.num_updates
