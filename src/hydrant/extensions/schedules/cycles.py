"""Curves that rise and fall, once or in cycles. `k` counts updates since the curve's start."""

import bisect
import functools
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Literal

from hydrant.clock import Clock, Interval
from hydrant.errors import ConfigError
from hydrant.files.plain_values import AtLeastOne, BetweenZeroAndOne, NotNegative, Positive, PositiveInt
from hydrant.schedules import Curve, check_one, framed, progress


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


def _cyclic(
    clock: Clock, step_size_up: object, step_size_down: object, mode: _Mode, gamma: NotNegative
) -> Callable[[int], float]:
    """Return the function `k -> height above the base`, in 0..1."""
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

    def height(k: int) -> float:
        cycle = cycles.count(k)
        start, peak, last = turns(cycle)
        rise = progress(k - start, peak - start) if k <= peak else (last - k) / (last - peak)
        return rise * _MODES[mode](gamma, cycle, k)

    return height


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
) -> Curve:
    """Repeatedly from `base_ratio` up to 1 in `step_size_up` and down again in `step_size_down`: torch's `CyclicLR`.

    Both step sizes are durations; `step_size_down=None` equals `step_size_up`. torch's `max_lr` is the optimizer's lr,
    and `base_ratio` is `base_lr / max_lr`. `mode` is triangular (equal cycles), triangular2 (each half as high as the
    previous one) or exp_range (height `gamma ** k`). `cyclic_momentum` is the matching momentum. Smith, "Cyclical
    learning rates for training neural networks", 2017.
    """
    height = _cyclic(clock, step_size_up, step_size_down, mode, gamma)
    return lambda k: base_ratio + (1.0 - base_ratio) * height(k)


@framed
def cyclic_momentum(
    clock: Clock,
    end: int,
    *,
    base_ratio: NotNegative,
    step_size_up: object,
    step_size_down: object,
    mode: _Mode,
    gamma: NotNegative,
) -> Curve:
    """From 1 down to `base_ratio` while the lr rises, then back to 1: the momentum of torch's `CyclicLR`."""
    height = _cyclic(clock, step_size_up, step_size_down, mode, gamma)
    return lambda k: 1.0 - (1.0 - base_ratio) * height(k)
