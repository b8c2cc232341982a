"""Runs without a run folder, for dry runs and measurements. Most have a process of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from typing import Any

from hydrant.errors import ConfigError
from hydrant.training.distributed.watchdog import Watchdog
from hydrant.training.plan import Plan
from hydrant.training.prepare.build import build, prepare
from hydrant.training.pruning import Pruning
from hydrant.training.trainer import RunLogger, Trainer, TrainState


def prepare_at_least(config: Mapping[str, Any], num_updates: int) -> Plan:
    """Prepare a run of at least `num_updates` updates.

    Raises:
        ConfigError: the config cannot run, or has fewer updates.
    """
    plan = prepare(config)
    total = plan.clock.total_updates
    if total < num_updates:
        message = f"the run has {total} updates, but {num_updates} are needed; use duration={num_updates}"
        raise ConfigError("duration", message)
    return plan


def build_scratch(plan: Plan, state: TrainState | None = None) -> Trainer:
    """Build a run on its device that logs and saves nothing. The caller has a process group, and closes the trainer."""
    return build(
        plan,
        state or TrainState(),
        logger=RunLogger(),
        save=lambda trainer, is_best: None,
        stop_signal=lambda: None,
        pruning=Pruning(),
        watchdog=Watchdog(),
    )


@contextlib.contextmanager
def scratch_trainer(plan: Plan, state: TrainState | None = None) -> Generator[Trainer]:
    """Build a run on its device that logs and saves nothing; close it at the end of the block."""
    with plan.world.process_group():
        trainer = build_scratch(plan, state)
        try:
            yield trainer
        finally:
            trainer.close()
