"""Samplers and pruners of a study, built from their config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, RandomSampler

from hydrant.config.signatures import check_arguments
from hydrant.errors import ConfigError, typed_line
from hydrant.runs.optuna_trial import make_part
from hydrant.safety.targets import locate, target_nodes
from hydrant.seeding import hash_of
from hydrant.sweeps.optuna.space import Space

SAMPLER, PRUNER = "hydra.sweeper.sampler", "hydra.sweeper.pruner"


def check_parts(sampler: Mapping[str, Any], pruner: Mapping[str, Any], space: Space) -> None:
    """Check that the nodes name a sampler and a pruner of Optuna that accept their arguments.

    Raises:
        ConfigError: names the key.
    """
    for key, node, kind in ((SAMPLER, sampler, BaseSampler), (PRUNER, pruner, BasePruner)):
        for name, inner in target_nodes(node, key):
            target = locate(inner["_target_"], f"{name}._target_")
            if not (isinstance(target, type) and issubclass(target, (BaseSampler, BasePruner))):
                message = f"{inner['_target_']} is no sampler or pruner of Optuna"
                raise ConfigError(f"{name}._target_", message)
            is_grid = name == SAMPLER and _is_a(inner, "GridSampler")
            check_arguments(name, {**({"search_space": {}} if is_grid else {}), **inner})
        try:
            part = make_sampler(node, space, 0) if kind is BaseSampler else make_part(node)
        except ConfigError:
            raise
        except Exception as error:  # the constructor may raise anything for wrong arguments
            raise ConfigError(key, f"{node.get('_target_')} refuses it: {typed_line(error)}") from error
        if not isinstance(part, kind):
            group = key.removeprefix("hydra.sweeper.")
            raise ConfigError(
                key, f"{part!r} is no {kind.__name__}", remedy=f"choose one: hydra/sweeper/{group}="
            )


def make_sampler(node: Mapping[str, Any], space: Space, number: int) -> BaseSampler:
    """Return the sampler of one trial, whose seed is a function of the study's seed and the trial's number.

    A resumed study therefore draws what an uninterrupted one draws. Grid and quasi-random samplers keep one seed in
    all trials: they walk through a sequence, and the study stores the position in it.
    """
    seed = node.get("seed")
    trial_seed = None if seed is None else hash_of(seed, number) % 2**32
    if _is_a(node, "GridSampler"):
        return make_part(node, search_space=space.grid())
    if _is_a(node, "QMCSampler"):
        return make_part(node, independent_sampler=RandomSampler(trial_seed))
    return make_part(node, **({} if seed is None else {"seed": trial_seed}))


def grid_size(node: Mapping[str, Any], space: Space) -> int | None:
    """Return how many trials a sampler can draw; None for unlimited."""
    return math.prod(map(len, space.grid().values())) if _is_a(node, "GridSampler") else None


def _is_a(node: Mapping[str, Any], name: str) -> bool:
    return str(node.get("_target_")).rpartition(".")[2] == name
