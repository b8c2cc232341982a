"""Curves that fall in steps."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Any

from hydrant.clock import Clock
from hydrant.errors import ConfigError
from hydrant.schedules.base import Curve, at_least_one, framed, refuse_negative


@framed
def step(clock: Clock, end: int, *, step_size: object, gamma: float) -> Curve:
    """`gamma ** floor(k / step_size)`, k updates into the curve: torch's `StepLR`, timm's step. A duration."""
    refuse_negative(gamma=gamma)
    size = at_least_one(clock, step_size, "step_size")
    return lambda k: gamma ** (k // size)


@framed
def multistep(clock: Clock, end: int, *, milestones: Sequence[Any], gamma: float) -> Curve:
    """`gamma` to the power of the `milestones` that are reached, durations: torch's `MultiStepLR`.

    timm's multistep with `decay_t` one later: it falls in the update before the one that it is told.
    """
    refuse_negative(gamma=gamma)
    reached = [clock.updates(milestone, "milestones") for milestone in milestones]
    if reached != sorted(reached):
        raise ConfigError("milestones", f"{list(milestones)} do not rise; write them in their order")
    return lambda k: gamma ** bisect.bisect_right(reached, k)
