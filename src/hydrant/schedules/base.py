"""The base of all schedules: a curve with warmup, cooldown and noise."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, get_type_hints

import torch

from hydrant.clock import Clock
from hydrant.errors import ConfigError
from hydrant.files.plain_values import NotNegative, NotNegativeInt

P = ParamSpec("P")

Curve = Callable[[int], float]
"""`updates since the curve's start -> ratio`. At the curve's length it returns its end value."""


@dataclass(frozen=True)
class Noise:
    """Multiplies a ratio by 1 + x, with x drawn from N(0, 1) until |x| < `limit`, as in timm.

    x depends only on `seed` and the update. `start <= update < end` are the updates with noise.
    """

    limit: float
    start: int
    end: int
    seed: int

    def __call__(self, update: int) -> float:
        if not self.start <= update < self.end:
            return 1.0
        generator = torch.Generator().manual_seed(self.seed + update)
        while abs(drawn := torch.randn(1, generator=generator).item()) >= self.limit:
            pass
        return 1.0 + drawn


@dataclass(frozen=True)
class Schedule:
    """`update -> ratio`, in float64 on the host. `warmup` and `length` count updates.

    >>> half = Schedule(warmup=2, warmup_init_ratio=0.0, length=2, curve=lambda update: 0.5)
    >>> [half(n) for n in range(4)]
    [0.0, 0.25, 0.5, 0.5]
    """

    warmup: int
    warmup_init_ratio: float
    length: int
    curve: Curve
    noise: Callable[[int], float] | None = None

    def __call__(self, update: int) -> float:
        if update >= self.warmup:
            ratio = self.curve(min(update - self.warmup, self.length))
        else:
            start = self.warmup_init_ratio
            ratio = start + (self.curve(0) - start) * update / self.warmup
        return ratio if self.noise is None else ratio * self.noise(update)


def framed(make_curve: Callable[Concatenate[Clock, int, P], Curve]) -> Callable[..., Schedule]:
    """Add the frame of every schedule, which is warmup, cooldown and noise, to `make_curve(clock, end, ...)`.

    The decorated function takes the run's clock, the keyword arguments of `make_curve`, and those of the frame:

    warmup: duration of the linear rise from `warmup_init_ratio` to the curve's first value.
    cooldown: duration at the end of the run that keeps the curve's end value.
    noise_ratio, noise_range, noise_seed: see `Noise`; the range `[start, end)` limits it to some updates.

    `end` is the curve's length in updates: what warmup and cooldown leave of the run. Durations are written as
    everywhere: 500, 2ep, 5%.

    >>> from hydrant.clock import Steps
    >>> @framed
    ... def constant(clock, end, *, factor):
    ...     return lambda update: factor
    >>> frame = dict(warmup="50%", warmup_init_ratio=0.0, cooldown=0, noise_ratio=0.0, noise_range=[0, 4], noise_seed=0)
    >>> clock = Clock.start(4, num_samples=4, batch_sizes=Steps.constant(1))
    >>> [constant(clock, factor=0.5, **frame)(n) for n in range(4)]
    [0.0, 0.25, 0.5, 0.5]
    """

    def schedule(
        clock: Clock,
        *,
        warmup: object,
        warmup_init_ratio: NotNegative,
        cooldown: object,
        noise_ratio: NotNegative,
        noise_range: tuple[int | str, int | str],
        noise_seed: NotNegativeInt,
        **arguments: Any,
    ) -> Schedule:
        num_warmup, length = split_run(clock, warmup, cooldown)
        start, end = (clock.updates(bound, "noise_range") for bound in noise_range)
        noise = Noise(noise_ratio, start, end, noise_seed) if noise_ratio else None
        of_curve = clock.since(num_warmup)
        curve = make_curve(of_curve, max(length, 1), **arguments)  # pyright: ignore[reportCallIssue]  # they are P.kwargs
        return Schedule(num_warmup, warmup_init_ratio, length, curve, noise)

    # Configs are checked against the signature and the hints.
    clock, *frame, _ = inspect.signature(schedule).parameters.values()
    curve = [p for p in inspect.signature(make_curve).parameters.values() if p.kind is p.KEYWORD_ONLY]
    hints = get_type_hints(schedule, include_extras=True) | get_type_hints(make_curve, include_extras=True)
    decorated: Any = functools.update_wrapper(schedule, make_curve)
    decorated.__signature__ = inspect.Signature([clock, *curve, *frame])
    decorated.__annotations__ = hints
    return decorated


def split_run(clock: Clock, warmup: object, cooldown: object) -> tuple[int, int]:
    """Return the number of updates of the warmup, and of the curve between warmup and cooldown.

    Raises:
        ConfigError: Warmup and cooldown are longer than the run.
    """
    num_warmup = clock.updates(warmup, "warmup")
    num_cooldown = clock.updates_before(clock.total_updates, cooldown, "cooldown")
    check_fits(clock.total_updates, warmup=num_warmup, cooldown=num_cooldown)
    return num_warmup, clock.total_updates - num_warmup - num_cooldown


def check_fits(length: int, **parts: int) -> None:
    """Refuse parts of a schedule, in updates, that are longer than its length; the error names the longest."""
    if sum(parts.values()) > length:
        longest, *others = sorted(parts, key=parts.__getitem__, reverse=True)
        counts = " and ".join(f"{parts[part]} updates of {part}" for part in (longest, *others))
        message = f"{counts} do not fit into {length} updates"
        raise ConfigError(longest, message, remedy=f"shorten {longest}, or lengthen duration")


def check_one(**arguments: object) -> None:
    """Refuse two arguments of which not exactly one is given."""
    first, second = arguments
    if (arguments[first] is None) == (arguments[second] is None):
        raise ConfigError(first, remedy=f"give either {first} or {second}, not both")


def progress(update: int, length: int) -> float:
    """Return `update / length`, clipped to 0..1. A curve of length 0 is at its end from update 0 on."""
    return min(max(update / length, 0.0), 1.0) if length > 0 else float(update >= 0)
