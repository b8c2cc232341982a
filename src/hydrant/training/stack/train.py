"""The training loop of a stack: updates are made for all lanes at once, everything else lane by lane."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from hydrant.clock import NOTHING, Due
from hydrant.training.loop import (
    begin_training,
    begin_update,
    end_training,
    finish_update,
    is_last_update,
    is_over,
)
from hydrant.training.stack.stack import LaneUpdate, Stack
from hydrant.training.trainer import Trainer
from hydrant.training.update import Update

T = TypeVar("T")


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
        """End the run: trained, or because of an error."""
        ...


def train_lanes(lanes: Sequence[Lane], stop_signal: Callable[[], int | None]) -> None:
    """Train runs, each as `train` does, and end each of them.

    A run that ends early leaves the stack, which goes on with the others. Runs that continue from checkpoints of
    different updates join when the others have come as far.
    """
    try:
        for lane in lanes:
            _call(lane, begin_training, lane.trainer)
        while running := _not_over(lanes):
            first = min(map(_num_updates, running))
            later = [n for n in map(_num_updates, running) if n > first]
            _advance(
                [lane for lane in running if _num_updates(lane) == first],
                min(later, default=None),
                stop_signal,
            )
    except BaseException as error:
        for lane in lanes:
            if lane.is_open:
                lane.end(error)
        if not isinstance(error, Exception):
            raise


def _advance(lanes: Sequence[Lane], limit: int | None, stop_signal: Callable[[], int | None]) -> None:
    """Make updates until a run ends, or up to `limit` completed updates."""
    stack = Stack([lane.trainer for lane in lanes])
    while len(_not_over(lanes)) == len(lanes) and _num_updates(lanes[0]) != limit:
        last = [is_last_update(lane.trainer) for lane in lanes]
        dues = [
            _call(lane, begin_update, lane.trainer, is_last=end)
            for lane, end in zip(lanes, last, strict=True)
        ]
        if not all(lane.is_open for lane in lanes):
            return
        due_now = [due or NOTHING for due in dues]
        shows_gradients = any(due.histogram or due.hooks for due in due_now)
        updates = stack.update(measure=any(due.log for due in due_now), show_gradients=shows_gradients)
        signum = stop_signal()
        if (
            signum is None
            and all(due is NOTHING for due in due_now)
            and all(isinstance(u, Update) for u in updates)
        ):
            continue
        stack.sync()
        for lane, due, update, end in zip(lanes, due_now, updates, last, strict=True):
            _call(lane, _finish_update, lane.trainer, due, update, signum, is_last=end)


def _finish_update(
    trainer: Trainer, due: Due, update: LaneUpdate, signum: int | None, *, is_last: bool
) -> None:
    if isinstance(update, Exception):
        raise update
    finish_update(trainer, due, update._replace(stop=signum), is_last=is_last)


def _not_over(lanes: Sequence[Lane]) -> list[Lane]:
    """End the runs that have made their last update, and return those that go on."""
    for lane in lanes:
        if lane.is_open and is_over(lane.trainer):
            _call(lane, end_training, lane.trainer)
            if lane.is_open:
                lane.end()
    return [lane for lane in lanes if lane.is_open]


def _call(lane: Lane, function: Callable[..., T], *arguments: object, **named: object) -> T | None:
    """Call a function for one run. An error ends this run alone."""
    try:
        with lane.active():
            return function(*arguments, **named)
    except Exception as error:
        lane.end(error)
        return None


def _num_updates(lane: Lane) -> int:
    return lane.trainer.state.num_updates
