"""Schedules besides those of the core: more curves, cycles, schedules made of others, and torch's own schedulers."""

from typing import TYPE_CHECKING

from hydrant.imports import lazy_exports

if TYPE_CHECKING:
    from hydrant.extensions.schedules.curves import inverse_sqrt as inverse_sqrt
    from hydrant.extensions.schedules.curves import lambda_ as lambda_
    from hydrant.extensions.schedules.curves import multistep as multistep
    from hydrant.extensions.schedules.curves import polynomial as polynomial
    from hydrant.extensions.schedules.curves import product as product
    from hydrant.extensions.schedules.curves import rex as rex
    from hydrant.extensions.schedules.curves import sequential as sequential
    from hydrant.extensions.schedules.curves import step as step
    from hydrant.extensions.schedules.curves import tanh as tanh
    from hydrant.extensions.schedules.cycles import cosine_restarts as cosine_restarts
    from hydrant.extensions.schedules.cycles import cyclic as cyclic
    from hydrant.extensions.schedules.cycles import cyclic_momentum as cyclic_momentum
    from hydrant.extensions.schedules.cycles import one_cycle as one_cycle
    from hydrant.extensions.schedules.cycles import one_cycle_momentum as one_cycle_momentum
    from hydrant.extensions.schedules.stepped import SchedulerBase as SchedulerBase
    from hydrant.extensions.schedules.stepped import StatefulSchedulerBase as StatefulSchedulerBase
    from hydrant.extensions.schedules.stepped import Stepped as Stepped

__getattr__, __dir__ = lazy_exports(__name__)
