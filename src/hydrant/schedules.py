"""Schedules: pure functions `update -> ratio`, float64 on the host. The ratio multiplies a field's own value.

Update `n` (0-based) runs with `base * schedule(n)`. Every schedule has three parts: a linear warmup from
`warmup_init_ratio` to the curve's first value, the curve over `[warmup, total_updates - cooldown)`, and a
cooldown that holds the curve's end value. The curve reaches its end value exactly at its end.

Durations are written as everywhere: `500` updates, `2ep`, `64000sa` or `5%` of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hydrant.clock import Clock
from hydrant.errors import ConfigError, unknown_name

Curve = Callable[[int, int], float]
"""`(updates into the curve, length of the curve) -> ratio`."""


@dataclass(frozen=True)
class Schedule:
    """Warmup, curve, cooldown. Lengths in updates.

    >>> half = Schedule(4, warmup=2, warmup_init_ratio=0.0, cooldown=0, curve=lambda update, length: 0.5)
    >>> [half(n) for n in range(4)]
    [0.0, 0.25, 0.5, 0.5]
    """

    total_updates: int
    warmup: int
    warmup_init_ratio: float
    cooldown: int
    curve: Curve

    def __call__(self, update: int) -> float:
        length = self.total_updates - self.warmup - self.cooldown
        if update < self.warmup:
            start = self.warmup_init_ratio
            return start + (self.curve(0, max(length, 1)) - start) * update / self.warmup
        return self.curve(min(update - self.warmup, length), length)

    @classmethod
    def over(
        cls, clock: Clock, *, warmup: object, warmup_init_ratio: float, cooldown: object, curve: Curve
    ) -> Schedule:
        """The schedule of a run; `warmup` and `cooldown` are durations as written."""
        _refuse_negative(warmup_init_ratio=warmup_init_ratio)
        warm, cool = clock.updates(warmup, "warmup"), clock.updates(cooldown, "cooldown")
        if warm + cool > clock.total_updates:
            key, other = ("warmup", "cooldown") if warm >= cool else ("cooldown", "warmup")
            raise ConfigError(
                key,
                f"{max(warm, cool)} updates of {key} and {min(warm, cool)} of {other} do not fit into "
                f"a run of {clock.total_updates} updates; shorten {key}, or lengthen duration",
            )
        return cls(clock.total_updates, warm, warmup_init_ratio, cool, curve)


def constant(clock: Clock, *, warmup: object, warmup_init_ratio: float, cooldown: object) -> Schedule:
    """`1`. After `warmup` this is transformers' `get_constant_schedule_with_warmup`."""
    return Schedule.over(
        clock,
        warmup=warmup,
        warmup_init_ratio=warmup_init_ratio,
        cooldown=cooldown,
        curve=lambda _update, _length: 1.0,
    )


def linear(
    clock: Clock, *, end_ratio: float, warmup: object, warmup_init_ratio: float, cooldown: object
) -> Schedule:
    """`1 + (end_ratio - 1) * t`, t in 0..1 along the curve: torch's `LinearLR(1, end_ratio, total_iters)`.

    >>> line = linear(Clock(4, 1, 4), end_ratio=0.0, warmup=0, warmup_init_ratio=0.0, cooldown=0)
    >>> [line(n) for n in range(5)]
    [1.0, 0.75, 0.5, 0.25, 0.0]
    """

    _refuse_negative(end_ratio=end_ratio)

    def curve(update: int, length: int) -> float:
        return 1.0 + (end_ratio - 1.0) * _progress(update, length)

    return Schedule.over(
        clock, warmup=warmup, warmup_init_ratio=warmup_init_ratio, cooldown=cooldown, curve=curve
    )


def cosine(
    clock: Clock, *, min_ratio: float, warmup: object, warmup_init_ratio: float, cooldown: object
) -> Schedule:
    """`min_ratio + (1 - min_ratio) * (1 + cos(pi * t)) / 2`: torch's `CosineAnnealingLR`.

    Loshchilov & Hutter, "SGDR: Stochastic gradient descent with warm restarts", 2017 (here without restarts).

    >>> wave = cosine(Clock(4, 1, 4), min_ratio=0.0, warmup=0, warmup_init_ratio=0.0, cooldown=0)
    >>> [round(wave(n), 6) for n in range(5)]
    [1.0, 0.853553, 0.5, 0.146447, 0.0]
    """

    _refuse_negative(min_ratio=min_ratio)

    def curve(update: int, length: int) -> float:
        return min_ratio + (1.0 - min_ratio) * (1.0 + math.cos(math.pi * _progress(update, length))) / 2.0

    return Schedule.over(
        clock, warmup=warmup, warmup_init_ratio=warmup_init_ratio, cooldown=cooldown, curve=curve
    )


def step(
    clock: Clock,
    *,
    step_size: object,
    gamma: float,
    warmup: object,
    warmup_init_ratio: float,
    cooldown: object,
) -> Schedule:
    """`gamma ** floor(k / step_size)`, k updates into the curve: torch's `StepLR`. `step_size` is a duration."""
    size = clock.updates(step_size, "step_size")
    if size < 1:
        raise ConfigError("step_size", f"{step_size!r} is less than one update; give 1 or more")
    _refuse_negative(gamma=gamma)
    return Schedule.over(
        clock,
        warmup=warmup,
        warmup_init_ratio=warmup_init_ratio,
        cooldown=cooldown,
        curve=lambda update, _: gamma ** (update // size),
    )


DECAY_SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda t: 1.0 - t,
    "cosine": lambda t: (1.0 + math.cos(math.pi * t)) / 2.0,
    "1-sqrt": lambda t: 1.0 - math.sqrt(t),
}
"""How `wsd` falls from 1 to 0 as t goes from 0 to 1. `1-sqrt` is the best of Hägele et al., 2024."""


def wsd(
    clock: Clock,
    *,
    decay: object,
    decay_shape: str,
    min_ratio: float,
    warmup: object,
    warmup_init_ratio: float,
    cooldown: object,
) -> Schedule:
    """Warmup-stable-decay: `1`, then over the last `decay` of the curve down to `min_ratio`.

    Hu et al., "MiniCPM", 2024; Hägele et al., "Scaling laws and compute-optimal training beyond fixed training
    durations", 2024. transformers' `get_wsd_schedule` with its decay types. `decay` is a duration.
    """
    if decay_shape not in DECAY_SHAPES:
        raise unknown_name("decay_shape", "shape", decay_shape, DECAY_SHAPES)
    _refuse_negative(min_ratio=min_ratio)
    num_decay, shape = clock.updates(decay, "decay"), DECAY_SHAPES[decay_shape]

    def curve(update: int, length: int) -> float:
        falling = _progress(update - (length - num_decay), num_decay)
        return min_ratio + (1.0 - min_ratio) * shape(falling)

    schedule = Schedule.over(
        clock, warmup=warmup, warmup_init_ratio=warmup_init_ratio, cooldown=cooldown, curve=curve
    )
    if num_decay > clock.total_updates - schedule.warmup - schedule.cooldown:
        raise ConfigError(
            "decay",
            f"{num_decay} updates of decay do not fit between warmup ({schedule.warmup}) and cooldown "
            f"({schedule.cooldown}) in a run of {clock.total_updates} updates; shorten decay, or lengthen duration",
        )
    return schedule


def _refuse_negative(**ratios: float) -> None:
    for key, ratio in ratios.items():
        if ratio < 0:
            raise ConfigError(key, f"needs a number from 0 on, not {ratio}")


def _progress(update: int, length: int) -> float:
    """How far along a curve, in 0..1; a curve of no length is at its end."""
    return min(max(update / length, 0.0), 1.0) if length > 0 else float(update >= 0)
