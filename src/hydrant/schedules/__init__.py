"""Schedules: pure functions `update -> ratio`, in float64 on the host. The ratio multiplies a field's base value.

Update `n` (0-based) runs with `base * schedule(n)`. Every schedule has three parts: a linear warmup from
`warmup_init_ratio` to the curve's first value, the curve over `[warmup, total_updates - cooldown)`, and a
cooldown that keeps the curve's end value. The curve reaches its end value exactly at its end.

Durations are written as everywhere: `500` updates, `2ep`, `64000sa`, `10Mtok`, `30s` or `5%` of the run.

Only `Plateau` is not a function of the update, because it depends on evaluations. `Replay` turns classes with a `step`
method, such as torch's schedulers, into functions of the update.
"""

from hydrant.schedules.base import Curve as Curve
from hydrant.schedules.base import Schedule as Schedule
from hydrant.schedules.base import framed as framed
from hydrant.schedules.curves import Plateau as Plateau
from hydrant.schedules.curves import constant as constant
from hydrant.schedules.curves import cosine as cosine
from hydrant.schedules.curves import exponential as exponential
from hydrant.schedules.curves import inverse_sqrt as inverse_sqrt
from hydrant.schedules.curves import lambda_ as lambda_
from hydrant.schedules.curves import linear as linear
from hydrant.schedules.curves import multistep as multistep
from hydrant.schedules.curves import polynomial as polynomial
from hydrant.schedules.curves import product as product
from hydrant.schedules.curves import rex as rex
from hydrant.schedules.curves import sequential as sequential
from hydrant.schedules.curves import step as step
from hydrant.schedules.curves import tanh as tanh
from hydrant.schedules.curves import wsd as wsd
from hydrant.schedules.cycles import cosine_restarts as cosine_restarts
from hydrant.schedules.cycles import cyclic as cyclic
from hydrant.schedules.cycles import cyclic_momentum as cyclic_momentum
from hydrant.schedules.cycles import one_cycle as one_cycle
from hydrant.schedules.cycles import one_cycle_momentum as one_cycle_momentum
from hydrant.schedules.torch_schedulers import Replay as Replay
from hydrant.schedules.torch_schedulers import SchedulerBase as SchedulerBase
from hydrant.schedules.torch_schedulers import StatefulSchedulerBase as StatefulSchedulerBase
from hydrant.schedules.torch_schedulers import SteppedScheduler as SteppedScheduler
