"""Schedules made of other schedules, or of a user's function."""

from __future__ import annotations

import bisect
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from hydrant.clock import Clock
from hydrant.errors import ConfigError
from hydrant.schedules.base import Curve, Schedule, framed
from hydrant.schedules.torch_schedulers import SteppedScheduler

ScheduleFactory = Callable[[Clock], object]


def _build(clock: Clock, schedules: Mapping[str, ScheduleFactory], name: str) -> Schedule:
    if not SteppedScheduler.is_built_by(schedules[name]):
        try:
            schedule = schedules[name](clock)
        except ConfigError as error:
            raise ConfigError(f"schedules.{name}.{error.key}", error.reason, remedy=error.remedy) from error
        if isinstance(schedule, Schedule):
            return schedule
    raise ConfigError(f"schedules.{name}", "only a function of the update can be part of another schedule")


@framed
def sequential(
    clock: Clock, end: int, *, schedules: Mapping[str, ScheduleFactory], lengths: Mapping[str, object]
) -> Curve:
    """Run schedules one after the other, each as if its part were the whole run: torch's `SequentialLR`.

    `lengths` gives the duration of each schedule. Exactly one is null: that schedule gets the remaining updates.

    Raises:
        ConfigError: not exactly one length is null, or the parts do not fit into the curve.
    """
    if schedules.keys() != lengths.keys():
        raise ConfigError("lengths", f"needs a duration for each of {', '.join(schedules)}, one of them null")
    open_ended = [name for name, duration in lengths.items() if duration is None]
    if len(open_ended) != 1:
        message = f"exactly one must be null, for the remaining updates; not {len(open_ended)}"
        raise ConfigError("lengths", message)
    spans = _spans(clock, {name: lengths[name] for name in schedules})
    (last,) = open_ended
    spans[last] = end - sum(spans.values())
    if spans[last] < 1:
        raise ConfigError(
            "lengths", f"no update of the {end} is left for {last}", remedy="shorten the others"
        )
    starts = list(itertools.accumulate((spans[name] for name in schedules), initial=0))[:-1]
    parts = [
        _build(replace(clock.since(start), total_updates=spans[name]), schedules, name)
        for name, start in zip(schedules, starts, strict=True)
    ]

    return sequential_of(starts, parts)


def sequential_of(starts: Sequence[int], schedules: Sequence[Curve]) -> Curve:
    """Run schedules one after the other. Each counts the updates from its start."""

    def curve(k: int) -> float:
        part = bisect.bisect_right(starts, k) - 1
        return schedules[part](k - starts[part])

    return curve


def _spans(clock: Clock, lengths: Mapping[str, object]) -> dict[str, int]:
    """Return the updates of every length that is given, at least 1. Sums are rounded, so that they do not drift."""
    spans, end, num_updates = dict[str, int](), Fraction(0), 0
    for name, duration in lengths.items():
        if duration is not None:
            interval = clock.since(num_updates).interval(duration, f"lengths.{name}")
            end += interval.length
            spans[name] = max(interval.round(end) - num_updates, 1)
            num_updates += spans[name]
    return spans


@framed
def product(clock: Clock, end: int, *, schedules: Mapping[str, ScheduleFactory]) -> Curve:
    """The product of all schedules: torch's `ChainedScheduler`."""
    return product_of([_build(replace(clock, total_updates=end), schedules, name) for name in schedules])


def product_of(schedules: Sequence[Curve]) -> Curve:
    """Multiply schedules."""
    return lambda k: math.prod(schedule(k) for schedule in schedules)


@framed
def lambda_(clock: Clock, end: int, *, fn: Callable[[int], float], cumulative: bool) -> Curve:
    """`fn(k)`: torch's `LambdaLR`. If `cumulative`, `fn(1) * fn(2) * ... * fn(k)`: torch's `MultiplicativeLR`."""
    # All values are computed now, so that an error stops the run before it starts.
    values = [float(fn(k)) for k in range(end + 1)]
    if cumulative:
        values = list(itertools.accumulate(values[1:], operator.mul, initial=1.0))
    return values.__getitem__
