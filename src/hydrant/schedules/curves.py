"""Curves of one piece. Each says its formula: `k` updates into the curve, `t` how far along it is, in 0..1."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from hydrant.clock import Clock
from hydrant.errors import ConfigError, unknown_name
from hydrant.schedules.base import Curve, at_least_one, framed, progress, refuse_negative, within


@framed
def constant(clock: Clock, end: int, *, factor: float, length: object) -> Curve:
    """`factor` for the first `length`, then 1: torch's `ConstantLR`.

    With the defaults and a warmup, transformers' `get_constant_schedule_with_warmup`.
    """
    refuse_negative(factor=factor)
    held = clock.updates(length, "length")
    return lambda k: factor if k < held else 1.0


@framed
def linear(clock: Clock, end: int, *, start_ratio: float, end_ratio: float, length: object) -> Curve:
    """`start_ratio + (end_ratio - start_ratio) * k / length`, then level: torch's `LinearLR`.

    transformers' `get_linear_schedule_with_warmup` ends at 0. `length` is a duration, null the whole curve.
    """
    refuse_negative(start_ratio=start_ratio, end_ratio=end_ratio)
    updates = within(clock, end, length, "length")
    return lambda k: start_ratio + (end_ratio - start_ratio) * progress(k, updates)


@framed
def cosine(clock: Clock, end: int, *, min_ratio: float, k_decay: float, num_cycles: float) -> Curve:
    """`min_ratio + (1 - min_ratio) * (1 + cos(2 pi * num_cycles * t**k_decay)) / 2`: torch's `CosineAnnealingLR`.

    Half a cycle is the ordinary one. transformers' `get_cosine_schedule_with_warmup` and its `min_lr` variants,
    timm's cosine with `warmup_prefix`. Loshchilov & Hutter, "SGDR", 2017; `k_decay`: Zhang & Li, "k-decay", 2020.
    """
    refuse_negative(min_ratio=min_ratio, k_decay=k_decay, num_cycles=num_cycles)

    def curve(k: int) -> float:
        angle = 2.0 * math.pi * num_cycles * progress(k, end) ** k_decay
        return min_ratio + (1.0 - min_ratio) * (1.0 + math.cos(angle)) / 2.0

    return curve


@framed
def polynomial(clock: Clock, end: int, *, power: float, end_ratio: float, length: object) -> Curve:
    """`end_ratio + (1 - end_ratio) * (1 - k / length) ** power`: torch's `PolynomialLR`, timm's poly.

    transformers' `get_polynomial_decay_schedule_with_warmup`. `length` is a duration, null the whole curve.
    """
    refuse_negative(power=power, end_ratio=end_ratio)
    updates = within(clock, end, length, "length")
    return lambda k: end_ratio + (1.0 - end_ratio) * (1.0 - progress(k, updates)) ** power


@framed
def exponential(clock: Clock, end: int, *, gamma: float | None, end_ratio: float | None) -> Curve:
    """`gamma ** k`, torch's `ExponentialLR`, or `end_ratio ** t`: give one of the two, the other is null."""
    if (gamma is None) == (end_ratio is None):
        raise ConfigError(
            "gamma", "give either gamma, the factor of one update, or end_ratio; the other is null"
        )
    if gamma is not None:
        refuse_negative(gamma=gamma)
        return lambda k: gamma**k
    assert end_ratio is not None
    if end_ratio <= 0:
        raise ConfigError("end_ratio", f"an exponential never reaches {end_ratio}; give a number above 0")
    return lambda k: end_ratio ** progress(k, end)


@framed
def inverse_sqrt(clock: Clock, end: int, *, timescale: object) -> Curve:
    """`1 / sqrt(1 + k / timescale)`: transformers' `get_inverse_sqrt_schedule`; `timescale` is a duration.

    Vaswani et al., "Attention is all you need", 2017, section 5.3, where it is as long as the warmup.
    """
    scale = at_least_one(clock, timescale, "timescale")
    return lambda k: 1.0 / math.sqrt((k + scale) / scale)


@framed
def tanh(clock: Clock, end: int, *, lb: float, ub: float, min_ratio: float) -> Curve:
    """`min_ratio + (1 - min_ratio) * (1 - tanh(lb * (1 - t) + ub * t)) / 2`: timm's tanh.

    Hsueh et al., "Stochastic gradient descent with hyperbolic-tangent decay on classification", 2019. It ends a
    little above `min_ratio`: (1 - tanh(ub)) / 2 of the way.
    """
    refuse_negative(min_ratio=min_ratio)

    def curve(k: int) -> float:
        t = progress(k, end)
        return min_ratio + (1.0 - min_ratio) * (1.0 - math.tanh(lb * (1.0 - t) + ub * t)) / 2.0

    return curve


DECAY_SHAPES: Mapping[str, Callable[[float, float], float]] = {
    "linear": lambda t, low: low + (1.0 - low) * (1.0 - t),
    "cosine": lambda t, low: low + (1.0 - low) * (1.0 + math.cos(math.pi * t)) / 2.0,
    "1-sqrt": lambda t, low: low + (1.0 - low) * (1.0 - math.sqrt(t)),
    "inverse": lambda t, low: 1.0 / (t / low + 1.0 - t),
}
"""How `wsd` falls from 1 to `low` as t goes from 0 to 1. `1-sqrt` is the best of Hägele et al., 2024; `inverse`,
Wen et al., "Understanding warmup-stable-decay learning rates", 2024, falls as 1 / lr rises in a straight line."""


@framed
def wsd(clock: Clock, end: int, *, decay: object, decay_shape: str, min_ratio: float) -> Curve:
    """Warmup-stable-decay: 1, then over the last `decay` of the curve down to `min_ratio`.

    Hu et al., "MiniCPM", 2024; Hägele et al., "Scaling laws and compute-optimal training beyond fixed training
    durations", 2024. transformers' `get_wsd_schedule` with its decay types. `decay` is a duration.
    """
    if decay_shape not in DECAY_SHAPES:
        raise unknown_name("decay_shape", "shape", decay_shape, DECAY_SHAPES)
    refuse_negative(min_ratio=min_ratio)
    if decay_shape == "inverse" and min_ratio == 0:
        raise ConfigError("min_ratio", "decay_shape=inverse falls to a ratio above 0; give one, such as 0.01")
    num_decay, shape = clock.updates(decay, "decay"), DECAY_SHAPES[decay_shape]
    if num_decay > end:
        raise ConfigError(
            "decay",
            f"{num_decay} updates of decay do not fit into the {end} that warmup and cooldown leave of "
            f"{clock.total_updates}; shorten decay, or lengthen duration",
        )
    return lambda k: shape(progress(k - (end - num_decay), num_decay), min_ratio)
