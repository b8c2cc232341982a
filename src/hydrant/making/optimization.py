"""The optimizers of a run: which parameters each trains, its groups, schedules, clipping and losses."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hydrant.batch import Outcome
from hydrant.clipping import Clipping
from hydrant.clock import Clock
from hydrant.compilation import Step
from hydrant.config.refusals import refusals
from hydrant.config.targets import check_arguments
from hydrant.errors import ConfigError, shown, unknown_name
from hydrant.fitting import scaled_lr
from hydrant.making import make_node, within
from hydrant.optimization import Optimization, Share
from hydrant.param_groups import check_fields, divided, param_groups
from hydrant.precision import Precision
from hydrant.schedules import Replay, Stepped
from hydrant.scheduling import AnySchedule, FieldSchedules, config_key, config_prefix

Schedules = Mapping[str, Mapping[str, AnySchedule]]
"""By optimizer and field."""

Stepper = Callable[[Optimizer, Collection[str]], Step]
"""From an optimizer and its scheduled fields to what applies its update."""


def named_settings(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The settings of each optimizer; without `optimizers` there is one, `main`, with those of the top level."""
    return dict(config["optimizers"]) or {"main": {**config, "parts": None, "losses": None}}


def make_schedules(config: Mapping[str, Any], clock: Clock) -> Schedules:
    """Every schedule of the config.

    Raises:
        ConfigError: one that cannot be made.
    """
    return {
        name: {field: _schedule(node, clock, config_key(name, field)) for field, node in _scheduled(settings)}
        for name, settings in named_settings(config).items()
    }


def flat_schedules(schedules: Schedules) -> dict[str, AnySchedule]:
    """By their config keys."""
    return {config_key(name, field): s for name, fields in schedules.items() for field, s in fields.items()}


def make_optimization(
    config: Mapping[str, Any],
    task: Any,
    schedules: Schedules,
    precision: Precision,
    stepper: Stepper,
) -> Optimization:
    """The optimizers over the parameters of a task as they are now.

    Raises:
        ConfigError: the optimizers, their groups or their schedules do not fit the task.
    """
    every = named_settings(config)
    own = divided(task, {name: settings["parts"] for name, settings in every.items()})
    optimizers: dict[str, Optimizer] = {}
    clippings: dict[str, Clipping] = {}
    for name, settings in every.items():
        with within(config_prefix(name), settings):
            common = {**settings, "global_batch_size": config["global_batch_size"]}
            optimizers[name] = _optimizer(common, task, own[name])
            clippings[name] = _clipping(settings, own[name])
    fields = FieldSchedules(optimizers, schedules)
    shares = {
        name: Share(
            optimizer, stepper(optimizer, fields.of(name)), clippings[name], _names(every[name]["losses"])
        )
        for name, optimizer in optimizers.items()
    }
    skips = config["skip_non_finite"]
    return Optimization(shares, fields, precision, skip_non_finite=skips)


def check_losses(config: Mapping[str, Any], outcome: Outcome) -> None:
    """Refuse losses that the task does not give, and those that nobody follows.

    Raises:
        ConfigError: naming the first.
    """
    every = named_settings(config)
    followed = [settings["losses"] for settings in every.values()]
    for name, settings in every.items():
        for loss in settings["losses"] or ():
            if loss not in outcome.losses:
                raise unknown_name(f"optimizers.{name}.losses", "loss", loss, outcome.losses)
        if settings["losses"] is not None and len(set(settings["losses"])) != max(len(settings["losses"]), 1):
            told = f"needs one loss or more, each once, or null; not {shown(settings['losses'])}"
            raise ConfigError(f"optimizers.{name}.losses", told)
    if None in followed:
        return
    for loss in outcome.losses:
        if not any(loss in losses for losses in followed):
            told = f"no optimizer follows {loss}; add it to the losses of one"
            raise ConfigError(f"optimizers.{next(iter(every))}.losses", told)


def _optimizer(settings: Mapping[str, Any], task: Any, own: Mapping[str, nn.Parameter]) -> Optimizer:
    node = dict(settings["optimizer"]) | scaled_lr(settings)
    groups = param_groups(task.model, own, node.get("lr"), **settings["param_groups"])
    _check_patterns(node, settings["param_groups"]["patterns"])
    with refusals("optimizer", settings):
        optimizer: Any = make_node(node)(groups)
    if not isinstance(optimizer, Optimizer):
        told = f"{node['_target_']} makes a {type(optimizer).__name__}; needed is a torch.optim.Optimizer"
        raise ConfigError("optimizer._target_", told)
    check_fields(groups, optimizer.defaults, type(optimizer).__name__)
    return optimizer


def _clipping(settings: Mapping[str, Any], own: Mapping[str, nn.Parameter]) -> Clipping:
    head = frozenset(id(p) for p in list(own.values())[-2:])
    if settings["agc"] is not None and len(own) <= len(head):
        raise ConfigError("agc", "spares the last layer, and there is no other; use max_grad_norm")
    return Clipping(settings["max_grad_norm"], settings["max_grad_value"], settings["agc"], head)


def _check_patterns(node: Mapping[str, Any], patterns: Mapping[str, Mapping[str, Any]]) -> None:
    """Let the optimizer look at the fields of each pattern as if they were its own: torch only looks at those."""
    taken = inspect.signature(make_node(node).func).parameters.keys() if patterns else ()
    for title, rule in patterns.items():
        key = f"param_groups.patterns.{title}"
        own = dict(node) | {field: value for field, value in rule.items() if field in taken}
        check_arguments(key, own)
        with refusals(key, own):
            make_node(own)([torch.nn.Parameter(torch.zeros(2, 2))])


def _names(losses: list[str] | None) -> tuple[str, ...] | None:
    return None if losses is None else tuple(losses)


def _scheduled(settings: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every scheduled field with its scheduler; that of one group is `head/lr`."""
    yield "lr", settings["scheduler"]
    yield from _fields(settings["schedules"])
    for title, rule in settings["param_groups"]["patterns"].items():
        for field, node in _fields(rule.get("schedules") or {}):
            yield f"{title}/{field}", node


def _fields(schedules: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(`weight_decay` or `betas.0`, its scheduler): a dotted field is nested in the config."""
    for name, node in schedules.items():
        if "_target_" in node:
            yield f"{prefix}{name}", node
        else:
            yield from _fields(node, f"{prefix}{name}.")


def _schedule(node: Mapping[str, Any], clock: Clock, key: str) -> AnySchedule:
    with refusals(key, node):
        made = make_node(node)
        if Stepped.is_made_by(made):
            if issubclass(made.func, ReduceLROnPlateau):
                raise ConfigError(f"{key}._target_", "waits for a metric; use the option plateau instead")
            replay = functools.partial(Replay, made, total_updates=clock.total_updates)
            return Stepped(refusals(key, node)(replay))
        try:
            return made(clock)
        except ConfigError as error:
            raise ConfigError(f"{key}.{error.key}", error.reason) from error
