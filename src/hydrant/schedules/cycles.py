"""Curves that rise and fall, once or in cycles."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping

from hydrant.clock import Clock
from hydrant.errors import ConfigError, unknown_name
from hydrant.schedules.base import Curve, at_least_one, framed, progress, refuse_negative


@framed
def cosine_restarts(
    clock: Clock,
    end: int,
    *,
    first_cycle: object,
    num_cycles: int | None,
    cycle_mult: float,
    cycle_decay: float,
    min_ratio: float,
) -> Curve:
    """Cosines from 1 to `min_ratio`, again and again: torch's `CosineAnnealingWarmRestarts`, timm's cycles.

    Give `first_cycle`, a duration: each cycle is `cycle_mult` times as long as the one before and begins at
    `cycle_decay` times its height. Or give `num_cycles`: so many equal ones, as transformers'
    `get_cosine_with_hard_restarts_schedule_with_warmup`. Loshchilov & Hutter, "SGDR", 2017.
    """
    if (first_cycle is None) == (num_cycles is None):
        raise ConfigError(
            "first_cycle", "give either first_cycle, a duration, or num_cycles; the other is null"
        )
    refuse_negative(cycle_decay=cycle_decay, min_ratio=min_ratio)
    if num_cycles is not None and num_cycles < 1:
        raise ConfigError("num_cycles", f"needs a number above 0, not {num_cycles}")
    if cycle_mult < 1:
        raise ConfigError(
            "cycle_mult", f"cycles that grow shorter never end; give 1 or more, not {cycle_mult}"
        )
    size = 0 if first_cycle is None else at_least_one(clock, first_cycle, "first_cycle")

    def place(k: int) -> tuple[int, float]:
        """(which cycle, how far along it)."""
        if num_cycles is not None:
            t = progress(k, end) * num_cycles
            return (int(t), t % 1.0) if k < end else (num_cycles - 1, 1.0)
        inside = min(k, end - 1)  # the end is that of the last cycle, not the beginning of another
        if cycle_mult == 1:
            return inside // size, (k - inside // size * size) / size
        cycle, begins, lasts = 0, 0.0, float(size)
        while inside >= begins + lasts:  # a logarithm would be wrong at the joints by rounding
            cycle, begins, lasts = cycle + 1, begins + lasts, lasts * cycle_mult
        return cycle, (k - begins) / lasts

    def curve(k: int) -> float:
        cycle, t = place(k)
        return min_ratio + (cycle_decay**cycle - min_ratio) * (1.0 + math.cos(math.pi * t)) / 2.0

    return curve


_ANNEAL: Mapping[str, Callable[[float, float, float], float]] = {
    "cos": lambda start, end, t: end + (start - end) / 2.0 * (math.cos(math.pi * t) + 1.0),
    "linear": lambda start, end, t: (end - start) * t + start,
}


def _one_cycle(
    length: int, pct_start: float, anneal_strategy: str, three_phase: bool, heights: list[float]
) -> Curve:
    """Between `heights` at the joints of the phases, which lie as in torch: the last is the last update's."""
    if not 0 < pct_start < (0.5 if three_phase else 1):
        above = "0.5, for it falls as long as it rises" if three_phase else "1"
        raise ConfigError("pct_start", f"needs a number above 0 and below {above}; not {pct_start}")
    if anneal_strategy not in _ANNEAL:
        raise unknown_name("anneal_strategy", "strategy", anneal_strategy, _ANNEAL)
    anneal = _ANNEAL[anneal_strategy]
    fallen = [2 * pct_start * length - 2] if three_phase else []
    ends = [pct_start * length - 1, *fallen, length - 1]

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
    pct_start: float,
    anneal_strategy: str,
    three_phase: bool,
    div_factor: float,
    final_div_factor: float,
) -> Curve:
    """From `1 / div_factor` up to 1 in the first `pct_start`, then down to that / `final_div_factor`.

    torch's `OneCycleLR`, whose `max_lr` is the optimizer's lr. `three_phase` falls to the first value as long as it
    rose, and then to the last. The momentum that goes with it: `one_cycle_momentum`.
    Smith & Topin, "Super-convergence", 2018.
    """
    for key, factor in {"div_factor": div_factor, "final_div_factor": final_div_factor}.items():
        if factor <= 0:
            raise ConfigError(key, f"needs a number above 0, not {factor}")
    low = 1.0 / div_factor
    heights = [low, 1.0, *([low] if three_phase else []), low / final_div_factor]
    return _one_cycle(end, pct_start, anneal_strategy, three_phase, heights)


@framed
def one_cycle_momentum(
    clock: Clock,
    end: int,
    *,
    pct_start: float,
    anneal_strategy: str,
    three_phase: bool,
    base_ratio: float,
) -> Curve:
    """From 1 down to `base_ratio` while the lr rises, and back: the momentum of torch's `OneCycleLR`.

    Its `max_momentum` is the field's own value, `base_ratio` its `base_momentum` as a share of that.
    """
    refuse_negative(base_ratio=base_ratio)
    heights = [1.0, base_ratio, 1.0, *([1.0] if three_phase else [])]
    return _one_cycle(end, pct_start, anneal_strategy, three_phase, heights)


_MODES: Mapping[str, Callable[[float, int, int], float]] = {
    "triangular": lambda gamma, cycle, k: 1.0,
    "triangular2": lambda gamma, cycle, k: 0.5**cycle,
    "exp_range": lambda gamma, cycle, k: gamma**k,
}
"""How high a cycle of `cyclic` is."""


def _cyclic(
    clock: Clock, step_size_up: object, step_size_down: object, mode: str, gamma: float
) -> Callable[[int], float]:
    """How much of the way up, in 0..1."""
    if mode not in _MODES:
        raise unknown_name("mode", "mode", mode, _MODES)
    refuse_negative(gamma=gamma)
    up = at_least_one(clock, step_size_up, "step_size_up")
    down = up if step_size_down is None else at_least_one(clock, step_size_down, "step_size_down")

    def height(k: int) -> float:
        cycle, at = divmod(k, up + down)
        rise = at / up if at <= up else (up + down - at) / down
        return rise * _MODES[mode](gamma, cycle, k)

    return height


@framed
def cyclic(
    clock: Clock,
    end: int,
    *,
    base_ratio: float,
    step_size_up: object,
    step_size_down: object,
    mode: str,
    gamma: float,
) -> Curve:
    """From `base_ratio` up to 1 in `step_size_up` and down again in `step_size_down`, again and again.

    torch's `CyclicLR`: the optimizer's lr is its `max_lr`, `base_ratio` its `base_lr` as a share of that. `mode` is
    triangular (all cycles equal), triangular2 (each half as high) or exp_range (`gamma ** k`). The momentum that
    goes with it: `cyclic_momentum`. Smith, "Cyclical learning rates for training neural networks", 2017.
    """
    refuse_negative(base_ratio=base_ratio)
    height = _cyclic(clock, step_size_up, step_size_down, mode, gamma)
    return lambda k: base_ratio + (1.0 - base_ratio) * height(k)


@framed
def cyclic_momentum(
    clock: Clock,
    end: int,
    *,
    base_ratio: float,
    step_size_up: object,
    step_size_down: object,
    mode: str,
    gamma: float,
) -> Curve:
    """From 1 down to `base_ratio` while the lr rises, and back: the momentum of torch's `CyclicLR`."""
    refuse_negative(base_ratio=base_ratio)
    height = _cyclic(clock, step_size_up, step_size_down, mode, gamma)
    return lambda k: 1.0 - (1.0 - base_ratio) * height(k)
