"""Schedules: pure functions `update -> ratio`, in float64 on the host. The ratio multiplies a field's base value.

Update `n` (0-based) runs with `base * schedule(n)`. Every schedule has three parts: a linear warmup from
`warmup_init_ratio` to the curve's first value, the curve over `[warmup, total_updates - cooldown)`, and a
cooldown that keeps the curve's end value. The curve reaches its end value exactly at its end.

Durations are written as everywhere: `500` updates, `2ep`, `64000sa`, `10Mtok`, `30s` or `5%` of the run.

Only `Plateau` is not a function of the update, because it depends on evaluations. A `GroupSchedule` gives the values
themselves.
"""

import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Literal, ParamSpec, get_type_hints

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hydrant.clock import Clock
from hydrant.errors import ConfigError
from hydrant.files.plain_values import BetweenZeroAndOne, NotNegative, NotNegativeInt, Positive

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


class GroupSchedule(ABC):
    """A schedule that gives the values of fields themselves, not ratios, and of each param group."""

    @abstractmethod
    def fields(self, optimizer: Optimizer) -> Sequence[Mapping[str, Callable[[int], float]]]:
        """Return the functions `update -> value` by field, for each group of an optimizer."""


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
        num_warmup, length = _split_run(clock, warmup, cooldown)
        start, end = (clock.updates(bound, "noise_range") for bound in noise_range)
        noise = Noise(noise_ratio, start, end, noise_seed) if noise_ratio else None
        of_curve = clock.since(num_warmup)
        curve = make_curve(of_curve, max(length, 1), **arguments)  # pyrefly: ignore[invalid-param-spec]  # they are P.kwargs
        return Schedule(num_warmup, warmup_init_ratio, length, curve, noise)

    # Configs are checked against the signature and the hints.
    clock, *frame, _ = inspect.signature(schedule).parameters.values()
    curve = [p for p in inspect.signature(make_curve).parameters.values() if p.kind is p.KEYWORD_ONLY]
    hints = get_type_hints(schedule, include_extras=True) | get_type_hints(make_curve, include_extras=True)
    decorated: Any = functools.update_wrapper(schedule, make_curve)
    decorated.__signature__ = inspect.Signature([clock, *curve, *frame])
    decorated.__annotations__ = hints
    return decorated


def _split_run(clock: Clock, warmup: object, cooldown: object) -> tuple[int, int]:
    """Return the number of updates of the warmup, and of the curve between warmup and cooldown.

    Raises:
        ConfigError: Warmup and cooldown are longer than the run.
    """
    num_warmup = clock.updates(warmup, "warmup")
    num_cooldown = clock.updates_before(clock.total_updates, cooldown, "cooldown")
    _check_fits(clock.total_updates, warmup=num_warmup, cooldown=num_cooldown)
    return num_warmup, clock.total_updates - num_warmup - num_cooldown


def _check_fits(length: int, **parts: int) -> None:
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


@framed
def constant(clock: Clock, end: int, *, factor: NotNegative, length: object) -> Curve:
    """`factor` for the first `length`, a duration, then 1: torch's `ConstantLR`.

    With the defaults and a warmup, it is transformers' `get_constant_schedule_with_warmup`.
    """
    num_updates = clock.updates(length, "length")
    return lambda k: factor if k < num_updates else 1.0


@framed
def linear(
    clock: Clock, end: int, *, start_ratio: NotNegative, end_ratio: NotNegative, length: object
) -> Curve:
    """`start_ratio + (end_ratio - start_ratio) * k / length`, then constant: torch's `LinearLR`.

    `length` is a duration, or null for the whole curve. With a warmup and `end_ratio=0`, it is transformers'
    `get_linear_schedule_with_warmup`.
    """
    updates = end if length is None else clock.updates(length, "length")
    return lambda k: start_ratio + (end_ratio - start_ratio) * progress(k, updates)


@framed
def cosine(
    clock: Clock, end: int, *, min_ratio: NotNegative, k_decay: NotNegative, num_cycles: NotNegative
) -> Curve:
    """`min_ratio + (1 - min_ratio) * (1 + cos(2 * pi * num_cycles * t**k_decay)) / 2`: torch's `CosineAnnealingLR`.

    `num_cycles=0.5` is the usual cosine decay. It equals transformers' `get_cosine_schedule_with_warmup`, its `min_lr`
    variants, and timm's cosine with `warmup_prefix`. Loshchilov & Hutter, "SGDR", 2017; `k_decay`: Zhang & Li,
    "k-decay", 2020.
    """

    def curve(k: int) -> float:
        angle = 2.0 * math.pi * num_cycles * progress(k, end) ** k_decay
        return min_ratio + (1.0 - min_ratio) * (1.0 + math.cos(angle)) / 2.0

    return curve


@framed
def exponential(clock: Clock, end: int, *, gamma: NotNegative | None, end_ratio: Positive | None) -> Curve:
    """Multiplied by the same factor in each update.

    The ratio is `gamma ** k`, as of torch's `ExponentialLR`, or `end_ratio ** t`. Exactly one of the two arguments is
    null.

    Raises:
        ConfigError: not exactly one of the two is given.
    """
    check_one(gamma=gamma, end_ratio=end_ratio)
    if gamma is not None:
        return lambda k: gamma**k
    assert end_ratio is not None
    return lambda k: end_ratio ** progress(k, end)


_Shape = Literal["linear", "cosine", "1-sqrt", "power", "inverse"]

DECAY_SHAPES: Mapping[_Shape, Callable[[float, float, float], float]] = {
    "linear": lambda t, low, _: low + (1.0 - low) * (1.0 - t),
    "cosine": lambda t, low, _: low + (1.0 - low) * (1.0 + math.cos(math.pi * t)) / 2.0,
    "1-sqrt": lambda t, low, _: low + (1.0 - low) * (1.0 - math.sqrt(t)),
    "power": lambda t, low, power: low + (1.0 - low) * (1.0 - t**power),
    "inverse": lambda t, low, _: 1.0 / (t / low + 1.0 - t),
}
"""The decay of `wsd` from 1 to `low` as t goes from 0 to 1; the third argument is `power`.

`1-sqrt` is the best shape in Hägele et al., 2024; `power` with 0.5 is the same. With `inverse` (Wen et al.,
"Understanding warmup-stable-decay learning rates", 2024), 1 / lr rises linearly.
"""


@framed
def wsd(
    clock: Clock, end: int, *, decay: object, decay_shape: _Shape, power: Positive, min_ratio: NotNegative
) -> Curve:
    """Warmup-stable-decay: constant 1, then a decay to `min_ratio` in the last part of the curve.

    `decay` is the duration of that part, `decay_shape` a name in `DECAY_SHAPES`; `power` is that of the shape `power`,
    `1 - t**power`. It equals transformers' `get_wsd_schedule` with its decay types. Hu et al., "MiniCPM", 2024; Hägele
    et al., "Scaling laws and compute-optimal training beyond fixed training durations", 2024.

    Raises:
        ConfigError: the decay does not fit into the curve, or an argument is out of its range.
    """
    if decay_shape == "inverse" and min_ratio == 0:
        raise ConfigError("min_ratio", "decay_shape=inverse needs a number above 0, such as 0.01")
    num_decay, shape = clock.updates_before(end, decay, "decay"), DECAY_SHAPES[decay_shape]
    _check_fits(end, decay=num_decay)
    return lambda k: shape(progress(k - (end - num_decay), num_decay), min_ratio, power)


class Plateau:
    """Multiplies the ratio by `factor` when an evaluation metric stops improving: torch's `ReduceLROnPlateau`.

    It is not a function of the update, so it has a state, which checkpoints contain. The arguments are those of
    torch's class; `patience` and `cooldown` count evaluations. `min_ratio`, torch's `min_lr`, and `eps` are relative
    to the field's base value. `warmup` and `warmup_init_ratio` are those of every schedule. Evaluations during the
    warmup count. A run replaces the mode `auto` by that of the metric, or refuses it.

    Raises:
        ConfigError: An argument is out of range.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        metric: str,
        mode: Literal["auto", "min", "max"],
        factor: BetweenZeroAndOne,
        patience: NotNegativeInt,
        threshold: float,
        threshold_mode: Literal["rel", "abs"],
        cooldown: int,
        min_ratio: NotNegative,
        eps: float,
        warmup: object,
        warmup_init_ratio: NotNegative,
    ) -> None:
        self.metric = metric
        self._warmup, _ = _split_run(clock, warmup, 0)
        self.mode = mode
        self._warmup_init_ratio = warmup_init_ratio
        self._optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)  # trains nothing: its lr is the ratio
        torch_mode = "max" if mode == "max" else "min"
        self._torch = ReduceLROnPlateau(
            self._optimizer, torch_mode, factor, patience, threshold, threshold_mode, cooldown, min_ratio, eps
        )

    def __call__(self, update: int) -> float:
        ratio: float = self._optimizer.param_groups[0]["lr"]
        if update >= self._warmup:
            return ratio
        return self._warmup_init_ratio + (ratio - self._warmup_init_ratio) * update / self._warmup

    def observe(self, row: Mapping[str, float]) -> None:
        """Pass the metrics of one evaluation to torch's scheduler."""
        self._torch.step(row[self.metric])

    def state_dict(self) -> dict[str, Any]:
        waits = {name: getattr(self._torch, name) for name in ("best", "num_bad_epochs", "cooldown_counter")}
        return {"ratio": self._optimizer.param_groups[0]["lr"], "judges": [self.metric, self.mode], **waits}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the ratio, and what was observed of the same metric; the arguments are those of this object."""
        observed = dict(state)
        self._optimizer.param_groups[0]["lr"] = observed.pop("ratio")
        if observed.pop("judges") == [self.metric, self.mode]:
            self._torch.load_state_dict(observed)
