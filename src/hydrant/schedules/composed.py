"""Schedules made of others, and of a user's own function."""

from __future__ import annotations

import bisect
import itertools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace

from hydrant.clock import Clock
from hydrant.errors import ConfigError
from hydrant.schedules.base import Curve, Schedule, at_least_one, framed
from hydrant.schedules.stepping import Stepped

MakeSchedule = Callable[[Clock], object]


def _made(clock: Clock, schedules: Mapping[str, MakeSchedule], name: str) -> Schedule:
    if not Stepped.is_made_by(schedules[name]):
        try:
            made = schedules[name](clock)
        except ConfigError as error:
            raise ConfigError(f"schedules.{name}.{error.key}", error.reason) from error
        if isinstance(made, Schedule):
            return made
    raise ConfigError(f"schedules.{name}", "only a function of the update can be part of another schedule")


@framed
def sequential(
    clock: Clock, end: int, *, schedules: Mapping[str, MakeSchedule], lengths: Mapping[str, object]
) -> Curve:
    """One schedule after the other, each as if its part were a run of its own: torch's `SequentialLR`.

    `lengths` gives the duration of each but one, which has what the others leave; it is null.
    """
    if schedules.keys() != lengths.keys():
        raise ConfigError("lengths", f"needs a duration for each of {', '.join(schedules)}; one of them null")
    rest = [name for name, duration in lengths.items() if duration is None]
    if len(rest) != 1:
        raise ConfigError("lengths", f"exactly one is null and has what the others leave; not {len(rest)}")
    spans = {n: at_least_one(clock, d, f"lengths.{n}") for n, d in lengths.items() if d is not None}
    spans[rest[0]] = end - sum(spans.values())
    if spans[rest[0]] < 1:
        raise ConfigError(
            "lengths", f"nothing of the {end} updates is left for {rest[0]}; shorten the others"
        )
    parts = [_made(replace(clock, total_updates=spans[name]), schedules, name) for name in schedules]
    starts = list(itertools.accumulate((spans[name] for name in schedules), initial=0))[:-1]

    def curve(k: int) -> float:
        part = bisect.bisect_right(starts, k) - 1
        return parts[part](k - starts[part])

    return curve


@framed
def product(clock: Clock, end: int, *, schedules: Mapping[str, MakeSchedule]) -> Curve:
    """All schedules multiplied: torch's `ChainedScheduler`."""
    parts = [_made(replace(clock, total_updates=max(end, 1)), schedules, name) for name in schedules]
    return lambda k: math.prod(part(k) for part in parts)


@framed
def lambda_(clock: Clock, end: int, *, fn: Callable[[int], float], cumulative: bool) -> Curve:
    """`fn(k)`: torch's `LambdaLR`. `cumulative`: `fn(1) * fn(2) * ... * fn(k)`, its `MultiplicativeLR`."""
    values = [float(fn(k)) for k in range(end + 1)]  # at once, so that a mistake is told before the run
    if cumulative:
        values = list(itertools.accumulate(values[1:], operator.mul, initial=1.0))
    return values.__getitem__
