"""Schedules besides those of the core: more curves, cycles, schedules made of others, and torch's own schedulers.

`k` counts updates since the curve's start.
"""

import bisect
import functools
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from hydrant.clock import Clock, Interval
from hydrant.errors import ConfigError, prefix_error_keys
from hydrant.files.plain_values import AtLeastOne, BetweenZeroAndOne, NotNegative, Positive, PositiveInt
from hydrant.imports import lazy_exports
from hydrant.schedules import Curve, Schedule, check_one, framed, progress

if TYPE_CHECKING:
    from hydrant.extensions.schedules.stepped import SchedulerBase as SchedulerBase
    from hydrant.extensions.schedules.stepped import StatefulSchedulerBase as StatefulSchedulerBase
    from hydrant.extensions.schedules.stepped import Stepped as Stepped

__getattr__, __dir__ = lazy_exports(__name__)


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


@framed
def cosine_restarts(
    clock: Clock,
    end: int,
    *,
    first_cycle: object,
    num_cycles: PositiveInt | None,
    cycle_mult: AtLeastOne,  # shrinking cycles have no end
    cycle_decay: NotNegative,
    min_ratio: NotNegative,
) -> Curve:
    """Repeated cosines from 1 to `min_ratio`: torch's `CosineAnnealingWarmRestarts`, timm's cycles.

    Either `first_cycle` is a duration: each cycle is `cycle_mult` times as long as the previous one and starts at
    `cycle_decay` times its height. Or `num_cycles` gives the number of equal cycles, as in transformers'
    `get_cosine_with_hard_restarts_schedule_with_warmup`. The other one is null. Loshchilov & Hutter, "SGDR", 2017.

    Raises:
        ConfigError: not exactly one of the two is given, or an argument is out of its range.
    """
    check_one(first_cycle=first_cycle, num_cycles=num_cycles)
    first = Fraction(1) if first_cycle is None else clock.interval(first_cycle, "first_cycle").length
    # Counted in 1 / unit updates, because a cycle may begin between two updates.
    size, unit = first.as_integer_ratio()

    def place(k: int) -> tuple[int, float]:
        """Return (index of the cycle, progress in it)."""
        if num_cycles is not None:
            t = progress(k, end) * num_cycles
            return (int(t), t % 1.0) if k < end else (num_cycles - 1, 1.0)
        inside = min(k, end - 1) * unit  # the curve's end belongs to the last cycle and starts no new one
        if cycle_mult == 1:
            return inside // size, min((k * unit - inside // size * size) / size, 1.0)
        cycle, start, length = 0, 0.0, float(size)
        while inside >= start + length:  # a logarithm would round wrongly where two cycles meet
            cycle, start, length = cycle + 1, start + length, length * cycle_mult
        return cycle, min((k * unit - start) / length, 1.0)

    def curve(k: int) -> float:
        cycle, t = place(k)
        return min_ratio + (cycle_decay**cycle - min_ratio) * (1.0 + math.cos(math.pi * t)) / 2.0

    return curve


_Strategy = Literal["cos", "linear"]

_ANNEAL: Mapping[_Strategy, Callable[[float, float, float], float]] = {
    "cos": lambda start, end, t: end + (start - end) / 2.0 * (math.cos(math.pi * t) + 1.0),
    "linear": lambda start, end, t: (end - start) * t + start,
}


def _one_cycle(
    length: int, pct_start: float, anneal_strategy: _Strategy, three_phase: bool, heights: list[float]
) -> Curve:
    """Interpolate between `heights`, the values where phases meet. The phases end at the same updates as in torch."""
    if three_phase and pct_start >= 0.5:
        needs = "a number below 0.5, because the fall is as long as the rise"
        raise ConfigError("pct_start", needs=needs, got=pct_start)
    anneal = _ANNEAL[anneal_strategy]
    first, last_end = pct_start * length - 1, length - 1
    ends = [first, 2 * pct_start * length - 2, last_end] if three_phase else [first, last_end]

    def curve(k: int) -> float:
        k = min(k, length - 1)
        phase = min(bisect.bisect_left(ends, k), len(ends) - 1)
        start, last = ends[phase - 1] if phase else 0.0, ends[phase]
        t = (k - start) / (last - start) if last > start else 1.0
        return anneal(heights[phase], heights[phase + 1], t)

    return curve


@framed
def one_cycle(
    clock: Clock,
    end: int,
    *,
    pct_start: BetweenZeroAndOne,
    anneal_strategy: _Strategy,
    three_phase: bool,
    div_factor: Positive,
    final_div_factor: Positive,
) -> Curve:
    """From `1 / div_factor` up to 1, then down to `1 / div_factor / final_div_factor`: torch's `OneCycleLR`.

    The rise takes the fraction `pct_start` of the curve. torch's `max_lr` is the optimizer's lr. With `three_phase`,
    the ratio first falls to its first value, in as many updates as it rose, then to the last value.
    `one_cycle_momentum` is the matching momentum. Smith & Topin, "Super-convergence", 2018.

    Raises:
        ConfigError: an argument is out of its range.
    """
    first = 1.0 / div_factor
    last = first / final_div_factor
    heights = [first, 1.0, first, last] if three_phase else [first, 1.0, last]
    return _one_cycle(end, pct_start, anneal_strategy, three_phase, heights)


@framed
def one_cycle_momentum(
    clock: Clock,
    end: int,
    *,
    pct_start: BetweenZeroAndOne,
    anneal_strategy: _Strategy,
    three_phase: bool,
    base_ratio: NotNegative,
) -> Curve:
    """From 1 down to `base_ratio` while the lr rises, then back to 1: the momentum of torch's `OneCycleLR`.

    torch's `max_momentum` is the field's base value, and `base_ratio` is `base_momentum / max_momentum`.
    """
    heights = [1.0, base_ratio, 1.0, 1.0] if three_phase else [1.0, base_ratio, 1.0]
    return _one_cycle(end, pct_start, anneal_strategy, three_phase, heights)


_Mode = Literal["triangular", "triangular2", "exp_range"]

_MODES: Mapping[_Mode, Callable[[float, int, int], float]] = {
    "triangular": lambda gamma, cycle, k: 1.0,
    "triangular2": lambda gamma, cycle, k: 0.5**cycle,
    "exp_range": lambda gamma, cycle, k: gamma**k,
}
"""The height of a cycle in each mode of `cyclic`: `(gamma, cycle, k) -> height`."""


@framed
def cyclic(
    clock: Clock,
    end: int,
    *,
    base_ratio: NotNegative,
    step_size_up: object,
    step_size_down: object,
    mode: _Mode,
    gamma: NotNegative,
    is_inverted: bool,
) -> Curve:
    """Repeatedly from `base_ratio` up to 1 in `step_size_up` and down again in `step_size_down`: torch's `CyclicLR`.

    Both step sizes are durations; `step_size_down=None` equals `step_size_up`. torch's `max_lr` is the optimizer's lr,
    and `base_ratio` is `base_lr / max_lr`. `mode` is triangular (equal cycles), triangular2 (each half as high as the
    previous one) or exp_range (height `gamma ** k`). With `is_inverted`, it falls from 1 while the lr rises: torch's
    momentum. Smith, "Cyclical learning rates for training neural networks", 2017.
    """
    up = clock.interval(step_size_up, "step_size_up")
    down = up if step_size_down is None else clock.interval(step_size_down, "step_size_down")
    cycles = Interval(up.length + down.length, up.rounded)

    @functools.cache
    def turns(cycle: int) -> tuple[int, int, int]:
        """Return the updates in which a cycle begins, is at its peak and ends."""
        return (
            cycles.multiple(cycle),
            cycles.round(cycle * cycles.length + up.length),
            cycles.multiple(cycle + 1),
        )

    def curve(k: int) -> float:
        cycle = cycles.count(k)
        start, peak, last = turns(cycle)
        rise = progress(k - start, peak - start) if k <= peak else (last - k) / (last - peak)
        change = (1.0 - base_ratio) * (rise * _MODES[mode](gamma, cycle, k))
        return 1.0 - change if is_inverted else base_ratio + change

    return curve


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
        message = f"no update of the {end} is left for {last}"
        raise ConfigError("lengths", message, remedy="shorten the others")
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
