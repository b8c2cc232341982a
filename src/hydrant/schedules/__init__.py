"""Schedules: pure functions `update -> ratio`, in float64 on the host. The ratio multiplies a field's base value.

Update `n` (0-based) runs with `base * schedule(n)`. Every schedule has three parts: a linear warmup from
`warmup_init_ratio` to the curve's first value, the curve over `[warmup, total_updates - cooldown)`, and a
cooldown that keeps the curve's end value. The curve reaches its end value exactly at its end.

Durations are written as everywhere: `500` updates, `2ep`, `64000sa`, `10Mtok`, `30s` or `5%` of the run.

Only `Plateau` is not a function of the update, because it depends on evaluations. `Replay` turns classes with a `step`
method, such as torch's schedulers, into functions of the update.
"""

from hydrant.schedules.base import Curve, Schedule, framed
from hydrant.schedules.curves import (
    Plateau,
    constant,
    cosine,
    exponential,
    inverse_sqrt,
    lambda_,
    linear,
    multistep,
    polynomial,
    product,
    rex,
    sequential,
    step,
    tanh,
    wsd,
)
from hydrant.schedules.cycles import cosine_restarts, cyclic, cyclic_momentum, one_cycle, one_cycle_momentum
from hydrant.schedules.torch_schedulers import Replay, SchedulerBase, StatefulSchedulerBase, SteppedScheduler

__all__ = [
    "Curve",
    "Plateau",
    "Replay",
    "Schedule",
    "SchedulerBase",
    "StatefulSchedulerBase",
    "SteppedScheduler",
    "constant",
    "cosine",
    "cosine_restarts",
    "cyclic",
    "cyclic_momentum",
    "exponential",
    "framed",
    "inverse_sqrt",
    "lambda_",
    "linear",
    "multistep",
    "one_cycle",
    "one_cycle_momentum",
    "polynomial",
    "product",
    "rex",
    "sequential",
    "step",
    "tanh",
    "wsd",
]
