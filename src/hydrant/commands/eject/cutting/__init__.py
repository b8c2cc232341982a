"""A config -> the constants and the parts of its program, by subject."""

from __future__ import annotations

from hydrant.commands.eject.cutting.collector import Collector
from hydrant.commands.eject.cutting.data import cut_data
from hydrant.commands.eject.cutting.optimizer import cut_optimizer
from hydrant.commands.eject.cutting.ranks import check_collectives, cut_ranks
from hydrant.commands.eject.cutting.run import (
    cut_averaging,
    cut_compilation,
    cut_mixing,
    cut_precision,
    cut_run,
)
from hydrant.commands.eject.cutting.schedules import cut_schedules
from hydrant.commands.eject.cutting.task import cut_loss, cut_model
from hydrant.commands.eject.parts import Parts
from hydrant.training.plan import Plan


def cut(plan: Plan, folder: str) -> Parts:
    """Return what a prepared run needs besides the program.

    Raises:
        ConfigError: the config has a part that cannot be ejected.
    """
    check_collectives(plan)
    collector = Collector(plan)
    cut_run(collector, folder)
    cut_precision(collector)
    cut_data(collector)
    cut_model(collector)
    cut_loss(collector)
    cut_mixing(collector)
    cut_optimizer(collector)
    cut_schedules(collector)
    cut_averaging(collector)
    cut_compilation(collector)
    cut_ranks(collector)
    return collector.parts
