"""Samplers and pruners of a study, from their nodes of the config."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hydrant.config.targets import check_arguments, locate, nodes
from hydrant.errors import ConfigError, typed_line
from hydrant.seeding import mix
from hydrant.studies import make_part
from hydrant.study.space import Space

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

SAMPLER, PRUNER = "hydra.sweeper.sampler", "hydra.sweeper.pruner"


def check_parts(sampler: Mapping[str, Any], pruner: Mapping[str, Any], space: Space) -> None:
    """Refuse what is no sampler or pruner, or does not take its arguments.

    Raises:
        ConfigError: names the key.
    """
    from optuna.pruners import BasePruner
    from optuna.samplers import BaseSampler

    for key, node, kind in ((SAMPLER, sampler, BaseSampler), (PRUNER, pruner, BasePruner)):
        for name, inner in nodes(node, key):
            target = locate(inner["_target_"], f"{name}._target_")
            if not (isinstance(target, type) and issubclass(target, (BaseSampler, BasePruner))):
                raise ConfigError(
                    f"{name}._target_", f"{inner['_target_']} is no sampler or pruner of Optuna"
                )
            given = {"search_space": {}} if name == SAMPLER and _is_a(inner, "GridSampler") else {}
            check_arguments(name, {**given, **inner})
        try:
            made = make_sampler(node, space, 0) if kind is BaseSampler else make_part(node)
        except ConfigError:
            raise
        except Exception as error:  # whatever its constructor thinks of the arguments
            raise ConfigError(key, f"{node.get('_target_')} refuses it: {typed_line(error)}") from error
        if not isinstance(made, kind):
            raise ConfigError(
                key, f"{made!r} is no {kind.__name__}; choose one: hydra/sweeper/{key.split('.')[-1]}="
            )


def make_sampler(node: Mapping[str, Any], space: Space, number: int) -> BaseSampler:
    """The sampler of one trial: what it draws is a function of its seed, the trial's number and the trials before.

    So a study that goes on draws what it would have drawn. Samplers that walk through a sequence have one seed in all
    trials: their place in it is in the study.
    """
    from optuna.samplers import RandomSampler

    seed = node.get("seed")
    own = None if seed is None else mix(seed, number) % 2**32
    if _is_a(node, "GridSampler"):
        return make_part(node, search_space=space.grid())
    if _is_a(node, "QMCSampler"):
        return make_part(node, independent_sampler=RandomSampler(own))
    return make_part(node, **({} if seed is None else {"seed": own}))


def grid_size(node: Mapping[str, Any], space: Space) -> int | None:
    """How many trials a sampler has; None for one without an end."""
    if not _is_a(node, "GridSampler"):
        return None
    return math.prod(map(len, space.grid().values()))


def _is_a(node: Mapping[str, Any], name: str) -> bool:
    return str(node.get("_target_")).rpartition(".")[2] == name
