"""Curves besides those of the core, and schedules made of others."""

import bisect
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from hydrant.clock import Clock
from hydrant.errors import ConfigError, prefix_error_keys
from hydrant.files.plain_values import NotNegative
from hydrant.schedules import Curve, Schedule, framed, progress


@framed
def polynomial(
    clock: Clock, end: int, *, power: NotNegative, end_ratio: NotNegative, length: object
) -> Curve:
    """`end_ratio + (1 - end_ratio) * (1 - k / length) ** power`: torch's `PolynomialLR`, timm's poly.

    It is also transformers' `get_polynomial_decay_schedule_with_warmup`. `length` is a duration, or null for the whole
    curve; after it, the ratio stays at `end_ratio`.
    """
    updates = end if length is None else clock.updates(length, "length")
    return lambda k: end_ratio + (1.0 - end_ratio) * (1.0 - progress(k, updates)) ** power


@framed
def inverse_sqrt(clock: Clock, end: int, *, timescale: object) -> Curve:
    """`1 / sqrt(1 + k / timescale)`: transformers' `get_inverse_sqrt_schedule`. `timescale` is a duration.

    Vaswani et al., "Attention is all you need", 2017, section 5.3, where the timescale equals the warmup.
    """
    scale = clock.interval(timescale, "timescale").multiple(1)  # at least 1
    return lambda k: 1.0 / math.sqrt((k + scale) / scale)


@framed
def tanh(clock: Clock, end: int, *, lb: float, ub: float, min_ratio: NotNegative) -> Curve:
    """`min_ratio + (1 - min_ratio) * (1 - tanh(lb * (1 - t) + ub * t)) / 2`: timm's tanh.

    Hsueh et al., "Stochastic gradient descent with hyperbolic-tangent decay on classification", 2019. It ends
    slightly above `min_ratio`, at `min_ratio + (1 - min_ratio) * (1 - tanh(ub)) / 2`.
    """

    def curve(k: int) -> float:
        t = progress(k, end)
        return min_ratio + (1.0 - min_ratio) * (1.0 - math.tanh(lb * (1.0 - t) + ub * t)) / 2.0

    return curve


@framed
def rex(clock: Clock, end: int, *, min_ratio: NotNegative) -> Curve:
    """`min_ratio + (1 - min_ratio) * (1 - t) / (1 - t / 2)`: slow at first, fast at the end.

    Chen et al., "REX: Revisiting budgeted training with an improved schedule", 2021.
    """

    def curve(k: int) -> float:
        t = progress(k, end)
        return min_ratio + (1.0 - min_ratio) * (1.0 - t) / (1.0 - t / 2.0)

    return curve


@framed
def step(clock: Clock, end: int, *, step_size: object, gamma: NotNegative) -> Curve:
    """`gamma ** floor(k / step_size)`: torch's `StepLR`, timm's step. `step_size` is a duration."""
    steps = clock.interval(step_size, "step_size")
    return lambda k: gamma ** steps.count(k)


@framed
def multistep(clock: Clock, end: int, *, milestones: Sequence[Any], gamma: NotNegative) -> Curve:
    """`gamma ** (number of milestones <= k)`: torch's `MultiStepLR`. The `milestones` are durations, in any order.

    timm's multistep decays one update earlier: it is the same with each `decay_t` one higher.
    """
    updates = sorted(clock.updates(milestone, "milestones") for milestone in milestones)
    return lambda k: gamma ** bisect.bisect_right(updates, k)


@framed
def lambda_(clock: Clock, end: int, *, fn: Callable[[int], float], cumulative: bool) -> Curve:
    """`fn(k)`: torch's `LambdaLR`. If `cumulative`, `fn(1) * fn(2) * ... * fn(k)`: torch's `MultiplicativeLR`."""
    # All values are computed now, so that an error stops the run before it starts.
    values = [float(fn(k)) for k in range(end + 1)]
    if cumulative:
        values = list(itertools.accumulate(values[1:], operator.mul, initial=1.0))
    return values.__getitem__


ScheduleFactory = Callable[[Clock], object]


def _build(clock: Clock, schedules: Mapping[str, ScheduleFactory], name: str) -> Schedule:
    with prefix_error_keys(f"schedules.{name}."):
        schedule = schedules[name](clock)
    if isinstance(schedule, Schedule):
        return schedule
    raise ConfigError(f"schedules.{name}", "only a function of the update can be part of another schedule")


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
def sequential(
    clock: Clock, end: int, *, schedules: Mapping[str, ScheduleFactory], lengths: Mapping[str, object]
) -> Curve:
    """Run schedules one after the other, each as if its part were the whole run: torch's `SequentialLR`.

    `lengths` gives the duration of each schedule. Exactly one is null: that schedule gets the remaining updates.

    Raises:
        ConfigError: not exactly one length is null, or the parts do not fit into the curve.
    """
    open_ended = [name for name, duration in lengths.items() if duration is None]
    if schedules.keys() != lengths.keys() or len(open_ended) != 1:
        names = ", ".join(schedules)
        raise ConfigError("lengths", needs=f"a duration for each of {names}, exactly one of them null")
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

    def curve(k: int) -> float:
        part = bisect.bisect_right(starts, k) - 1
        return parts[part](k - starts[part])

    return curve


@framed
def product(clock: Clock, end: int, *, schedules: Mapping[str, ScheduleFactory]) -> Curve:
    """The product of all schedules: torch's `ChainedScheduler`."""
    factors = [_build(replace(clock, total_updates=end), schedules, name) for name in schedules]
    return lambda k: math.prod(factor(k) for factor in factors)
