"""The training loop of a stack: updates are made for all lanes at once, everything else lane by lane."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from torch import Tensor

from hydrant.clock import NOTHING, Due
from hydrant.errors import Interrupted
from hydrant.extensions.stacked.stack import Stack
from hydrant.training import loop
from hydrant.training.memory import explain_out_of_memory
from hydrant.training.trainer import Trainer
from hydrant.training.update import Update

T = TypeVar("T")

_REMEDY = "Train fewer runs at once: hydra.launcher.lanes=<number>"


class Lane(Protocol):
    """A run of a stack."""

    @property
    def trainer(self) -> Trainer: ...

    @property
    def is_open(self) -> bool:
        """Whether the run has not ended yet."""
        ...

    def active(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which this run logs."""
        ...

    def end(self, error: BaseException | None = None) -> None:
        """End the run, trained or because of an error. Raises nothing but KeyboardInterrupt."""
        ...


def train_lanes(lanes: Sequence[Lane], stop_signal: Callable[[], int | None]) -> None:
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


def _advance(lanes: Sequence[Lane], limit: int | None, stop_signal: Callable[[], int | None]) -> None:
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


def _quiet_end(lanes: Sequence[Lane]) -> int:
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
    lanes: Sequence[Lane], dues: Sequence[tuple[Due, bool]], norms: Mapping[str, Tensor], signum: int | None
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


def _catch_up(stack: Stack, lanes: Sequence[Lane], num_updates: int) -> None:
    """Give the lanes what the stack holds for them, and count the updates that they have not reported."""
    stack.sync()
    for lane in lanes:
        if lane.is_open:
            for _ in range(num_updates):
                lane.trainer.logger.advance()


def _skip(lanes: Sequence[Lane], seconds: float) -> None:
    """Do not count this time as training of these lanes."""
    for lane in lanes:
        lane.trainer.pace.skip(seconds)


def _begin_update(lane: Lane) -> tuple[Due, bool]:
    """Return what is due after the next update of a run, and whether it is its last one."""
    if not lane.is_open:
        return NOTHING, False
    is_last = loop.is_last_update(lane.trainer)
    return _call(lane, loop.begin_update, lane.trainer, is_last=is_last) or NOTHING, is_last


def _finish_update(trainer: Trainer, due: Due, update: Update, *, is_last: bool) -> None:
    # Also if a checkpoint could not be saved.
    stop = trainer.stop_signal() if update.stop is None else update.stop
    loop.finish_update(trainer, due, update._replace(stop=stop), is_last=is_last)


def _not_over(lanes: Sequence[Lane]) -> list[Lane]:
    """End the runs that have made their last update, and return those that go on."""
    for lane in lanes:
        if lane.is_open and loop.is_over(lane.trainer):
            _call(lane, loop.end_training, lane.trainer)
            if lane.is_open:
                lane.end()
    return [lane for lane in lanes if lane.is_open]


def _call(lane: Lane, function: Callable[..., T], *arguments: object, **named: object) -> T | None:
    """Call a function for one run. An error ends this run alone."""
    try:
        with lane.active():
            return function(*arguments, **named)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a part of the user may raise anything, such as GeneratorExit
        lane.end(error)
        return None


def _num_updates(lane: Lane) -> int:
    return lane.trainer.state.num_updates
