"""Curves without cycles, schedules made of others, and `plateau`, which depends on metrics."""

import bisect
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hydrant.clock import Clock
from hydrant.errors import ConfigError
from hydrant.files.plain_values import BetweenZeroAndOne, NotNegative, NotNegativeInt, Positive
from hydrant.schedules.base import Curve, Schedule, check_fits, check_one, framed, progress, split_run
from hydrant.schedules.torch_schedulers import SteppedScheduler


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
    check_fits(end, decay=num_decay)
    return lambda k: shape(progress(k - (end - num_decay), num_decay), min_ratio, power)


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


ScheduleFactory = Callable[[Clock], object]


def _build(clock: Clock, schedules: Mapping[str, ScheduleFactory], name: str) -> Schedule:
    if not SteppedScheduler.is_built_by(schedules[name]):
        try:
            schedule = schedules[name](clock)
        except ConfigError as error:
            raise error.at(f"schedules.{name}.{error.key}") from error
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
    factors = [_build(replace(clock, total_updates=end), schedules, name) for name in schedules]
    return lambda k: math.prod(factor(k) for factor in factors)


@framed
def lambda_(clock: Clock, end: int, *, fn: Callable[[int], float], cumulative: bool) -> Curve:
    """`fn(k)`: torch's `LambdaLR`. If `cumulative`, `fn(1) * fn(2) * ... * fn(k)`: torch's `MultiplicativeLR`."""
    # All values are computed now, so that an error stops the run before it starts.
    values = [float(fn(k)) for k in range(end + 1)]
    if cumulative:
        values = list(itertools.accumulate(values[1:], operator.mul, initial=1.0))
    return values.__getitem__


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
        self._warmup, _ = split_run(clock, warmup, 0)
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
        return {"ratio": self._optimizer.param_groups[0]["lr"], "torch": self._torch.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._optimizer.param_groups[0]["lr"] = state["ratio"]
        self._torch.load_state_dict(state["torch"])
