"""What a schedule is: a curve in its frame of warmup, cooldown and noise."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, get_type_hints

import torch

from hydrant.clock import Clock, Duration
from hydrant.errors import ConfigError

P = ParamSpec("P")

Curve = Callable[[int], float]
"""`updates into the curve -> ratio`; at the curve's length it gives the end value."""


@dataclass(frozen=True)
class Noise:
    """Multiplies by 1 + x, x ~ N(0, 1) drawn again until |x| < `ratio`: timm's, a function of `seed` and the update."""

    ratio: float
    start: int
    end: int
    seed: int

    def __call__(self, update: int) -> float:
        if self.ratio == 0 or not self.start <= update < self.end:
            return 1.0
        generator = torch.Generator().manual_seed(self.seed + update)
        while abs(drawn := torch.randn(1, generator=generator).item()) >= self.ratio:
            pass
        return 1.0 + drawn


@dataclass(frozen=True)
class Schedule:
    """`update -> ratio`, float64 on the host. Lengths in updates.

    >>> half = Schedule(warmup=2, warmup_init_ratio=0.0, length=2, curve=lambda update: 0.5)
    >>> [half(n) for n in range(4)]
    [0.0, 0.25, 0.5, 0.5]
    """

    warmup: int
    warmup_init_ratio: float
    length: int
    curve: Curve
    noise: Callable[[int], float] = lambda update: 1.0

    def __call__(self, update: int) -> float:
        return self._framed(update) * self.noise(update)

    def _framed(self, update: int) -> float:
        if update >= self.warmup:
            return self.curve(min(update - self.warmup, self.length))
        start = self.warmup_init_ratio
        return start + (self.curve(0) - start) * update / self.warmup


def framed(make: Callable[Concatenate[Clock, int, P], Curve]) -> Callable[..., Schedule]:
    """Put the curve that `make(clock, end, ...)` gives into the frame that every schedule has.

    The result is called with the run's clock, the arguments of `make`, and those of the frame:

    warmup: how long the schedule rises in a straight line from `warmup_init_ratio` to the curve's first value.
    cooldown: how long it keeps the curve's end value, at the end of the run.
    noise_ratio, noise_range, noise_seed: see `Noise`; the range is the updates `[start, end)` that have it.

    `end` is what the two leave for the curve, in updates. Durations are written as everywhere: 500, 2ep, 5%.

    >>> @framed
    ... def constant(clock, end, *, factor):
    ...     return lambda update: factor
    >>> frame = dict(warmup="50%", warmup_init_ratio=0.0, cooldown=0, noise_ratio=0.0, noise_range=[0, 4], noise_seed=0)
    >>> [constant(Clock(4, 1, 4), factor=0.5, **frame)(n) for n in range(4)]
    [0.0, 0.25, 0.5, 0.5]
    """

    @functools.wraps(make)
    def schedule(
        clock: Clock,
        *,
        warmup: object,
        warmup_init_ratio: float,
        cooldown: object,
        noise_ratio: float,
        noise_range: Sequence[Any],
        noise_seed: int,
        **own: Any,
    ) -> Schedule:
        refuse_negative(warmup_init_ratio=warmup_init_ratio, noise_ratio=noise_ratio)
        warm, length = lengths(clock, warmup, cooldown)
        noise = Noise(noise_ratio, *_range(clock, noise_range), noise_seed)
        curve = make(clock, max(length, 1), **own)  # pyright: ignore[reportCallIssue]  # `own` are its P.kwargs
        return Schedule(warm, warmup_init_ratio, length, curve, noise)

    return _signed(schedule, make)


def _signed(schedule: Callable[..., Schedule], make: Callable[..., Any]) -> Callable[..., Schedule]:
    """Tell `inspect` which arguments are taken, with their types, by which a config is checked."""
    of_frame, of_curve = (inspect.signature(f, follow_wrapped=False).parameters for f in (schedule, make))
    clock, frame = of_frame["clock"], [p for p in of_frame.values() if p.kind is p.KEYWORD_ONLY]
    own = [p for p in of_curve.values() if p.kind is p.KEYWORD_ONLY]
    schedule.__signature__ = inspect.Signature([clock, *own, *frame])  # type: ignore[attr-defined]
    schedule.__annotations__ = _FRAME_HINTS | get_type_hints(make)
    return schedule


_FRAME_HINTS: dict[str, Any] = {
    "warmup_init_ratio": float,
    "noise_ratio": float,
    "noise_range": list,
    "noise_seed": int,
}


def lengths(clock: Clock, warmup: object, cooldown: object) -> tuple[int, int]:
    """The updates of the warmup, and those that it and the cooldown leave; ConfigError if they do not fit."""
    warm, cool = clock.updates(warmup, "warmup"), clock.updates(cooldown, "cooldown")
    if warm + cool > clock.total_updates:
        key, other = ("warmup", "cooldown") if warm >= cool else ("cooldown", "warmup")
        raise ConfigError(
            key,
            f"{max(warm, cool)} updates of {key} and {min(warm, cool)} of {other} do not fit into "
            f"a run of {clock.total_updates} updates; shorten {key}, or lengthen duration",
        )
    return warm, clock.total_updates - warm - cool


def _range(clock: Clock, bounds: Sequence[Any]) -> tuple[int, int]:
    if len(bounds) != 2:
        raise ConfigError("noise_range", f"needs a start and an end, such as [40%, 90%], not {bounds}")
    start, end = (clock.updates(bound, "noise_range") for bound in bounds)
    if start > end:
        raise ConfigError("noise_range", f"ends before it begins: {list(bounds)}; give the start first")
    return start, end


def refuse_negative(**ratios: float) -> None:
    """Raises ConfigError, naming the first that is below 0."""
    for key, ratio in ratios.items():
        if ratio < 0:
            raise ConfigError(key, f"needs a number from 0 on, not {ratio}")


def at_least_one(clock: Clock, duration: object, key: str) -> int:
    """A duration in updates that may not be 0; a part of an update is one."""
    if Duration.parse(duration, key).amount == 0:
        raise ConfigError(key, f"{duration!r} is no update at all; give 1 or more")
    return max(clock.updates(duration, key), 1)


def within(clock: Clock, end: int, duration: object, key: str) -> int:
    """A duration in updates along a curve of `end` updates; null is all of it."""
    return end if duration is None else clock.updates(duration, key)


def progress(update: int, length: int) -> float:
    """How far along, in 0..1; what has no length is at its end."""
    return min(max(update / length, 0.0), 1.0) if length > 0 else float(update >= 0)
