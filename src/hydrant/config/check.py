"""Is this config one that can run? Everything that can be told without data and without a device."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from hydrant.clock import Duration
from hydrant.config.hints import accepts, check_value
from hydrant.config.messages import explain_interpolation, unknown_key
from hydrant.config.schema import (
    DURATIONS,
    GROUPS,
    NOT_NEGATIVE,
    OPTIMIZER_POSITIVE,
    POSITIVE,
    WAITING,
    NamedOptimizer,
    OptimizerSettings,
    TrainConfig,
    check_name,
)
from hydrant.config.targets import check_targets
from hydrant.errors import ConfigError, shown

_LONGEST_SECONDS = 366 * 24 * 3600


def check(config: DictConfig) -> dict[str, Any]:
    """The resolved config in plain types: dicts, lists, strings, numbers, `None`.

    Raises:
        ConfigError: an unknown key, a wrong type or value, an unresolved or missing value, a target that is
            not allowed or that does not take an argument given to it.
    """
    plain = _plain(config)
    resolved = _typed("", TrainConfig, plain)
    resolved["optimizers"] = _completed(resolved)
    for key, value in _leaves(resolved, ""):
        if isinstance(value, float) and math.isnan(value):
            raise ConfigError(key, "needs a number, not nan")
    _check_values(resolved)
    check_targets(resolved)
    _check_parallel(resolved["parallel"])
    return resolved


def _plain(config: DictConfig) -> dict[str, Any]:
    raw = OmegaConf.to_container(config, resolve=False)
    for key, value in _leaves(raw, ""):
        if value == "???":
            raise ConfigError(key, f"needs a value; give {key}=<value>")
    with explain_interpolation(config):
        plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    for key, value in _leaves(plain, ""):
        if isinstance(value, str) and "${" in value:  # it would be resolved when the part is made, unseen
            raise ConfigError(
                key, f"{shown(value)} is still an interpolation once resolved; write it without \\"
            )
    return {str(key): value for key, value in plain.items()}


def _typed(prefix: str, schema: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` as the schema wants them. A number for a text is its text; nothing else is converted."""
    hints = typing.get_type_hints(schema)
    for name in values:
        if name not in hints:
            raise unknown_key(f"{prefix}{name}", hints)
    typed: dict[str, Any] = {}
    for name, hint in hints.items():
        key = f"{prefix}{name}"
        if name not in values:
            raise ConfigError(key, f"needs a value; give {key}=<value>")
        value = values[name]
        if is_dataclass(hint):
            check_value(key, dict[str, Any], value)
            typed[name] = _typed(f"{key}.", hint, value)
            continue
        if accepts(hint, "") and hint is not Any and type(value) in (int, float):
            value = str(value)  # name=1 reads as a number
        check_value(key, hint, value)
        typed[name] = value
    return typed


def _check_values(resolved: Mapping[str, Any]) -> None:
    if resolved["name"] is not None:
        check_name(resolved["name"])
    _check_positive("", resolved, POSITIVE)
    for key in NOT_NEGATIVE:
        if resolved[key] < 0:
            raise ConfigError(key, f"needs a number from 0 on, not {resolved[key]}")
    for key in DURATIONS:
        if resolved[key] is not None or key == "duration":
            Duration.parse(resolved[key], key)
    for group in GROUPS:
        _check_group(group, resolved[group], f"{group}=<option>, see --help", waits=group in WAITING)
    _check_optimizer("", resolved)
    for name, settings in resolved["optimizers"].items():
        prefix = f"optimizers.{name}."
        for group in ("optimizer", "scheduler"):
            key = f"{prefix}{group}"
            _check_group(key, settings[group], f"+{group}@{key}=<option>, see --help", waits=True)
        _check_optimizer(prefix, settings)


def _check_parallel(settings: Mapping[str, Any]) -> None:
    """The numbers by which ranks are started and watched, before anything is."""
    for name, least, told in (("num_processes", 1, "1 or more"), ("max_restarts", 0, "a number from 0 on")):
        if settings.get(name, least) < least:
            raise ConfigError(f"parallel.{name}", f"needs {told}, not {settings[name]}")
    seconds = settings.get("timeout_seconds", 1)
    if not 0 < seconds <= _LONGEST_SECONDS:
        raise ConfigError("parallel.timeout_seconds", f"needs more than 0, up to a year; not {seconds}")


def _completed(resolved: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The named optimizers, each with the settings of the top level where it has none of its own."""
    completed: dict[str, dict[str, Any]] = {}
    for name, own in resolved["optimizers"].items():
        if not name.isidentifier():
            raise ConfigError(f"optimizers.{name}", "is no name; use letters, digits and '_'")
        check_value(f"optimizers.{name}", dict[str, Any], own)
        if name == "main":
            raise ConfigError(
                "optimizers.main", "main is the only one where there are none; choose another name"
            )
        settings = {"parts": None, "losses": None} | own
        for key in typing.get_type_hints(OptimizerSettings):
            given, common = own.get(key, {}), resolved[key]
            is_partial = isinstance(given, dict) and isinstance(common, dict) and "_target_" not in given
            settings[key] = common | given if is_partial else own.get(key, common)
        completed[name] = _typed(f"optimizers.{name}.", NamedOptimizer, settings)
    return completed


def _check_positive(prefix: str, settings: Mapping[str, Any], keys: Sequence[str]) -> None:
    for key in keys:
        if settings[key] not in (None, "auto") and settings[key] <= 0:
            raise ConfigError(f"{prefix}{key}", f"needs a number above 0, not {settings[key]}")


def _check_group(key: str, node: Any, remedy: str, *, waits: bool) -> None:
    _check_part(key, node, remedy)
    if waits and not node.get("_partial_"):
        told = "is built later, with what the run gives it; add _partial_: true to the option"
        raise ConfigError(f"{key}._partial_", told)


def _check_optimizer(prefix: str, settings: Mapping[str, Any]) -> None:
    """The limits of an optimizer, its schedules and those of its groups."""
    _check_positive(prefix, settings, OPTIMIZER_POSITIVE)
    if "lr" in settings["schedules"]:
        raise ConfigError(f"{prefix}schedules.lr", "lr is scheduled by scheduler; remove it here")
    _check_schedules(f"{prefix}schedules", settings["schedules"])
    for title, rule in settings["param_groups"]["patterns"].items():
        key = f"{prefix}param_groups.patterns.{title}.schedules"
        check_value(key, dict[str, Any], rule.get("schedules", {}))
        _check_schedules(key, rule.get("schedules", {}))


def _check_schedules(prefix: str, schedules: Mapping[str, Any]) -> None:
    for field, node in schedules.items():
        key = f"{prefix}.{field}"
        parts = {key: node} if not isinstance(node, dict) or "_target_" in node else {
            f"{key}.{position}": inner for position, inner in node.items()
        }  # fmt: skip
        for name, part in parts.items():  # betas.0 is nested
            _check_part(name, part, f"+scheduler@{name}=linear")


def _check_part(key: str, node: Any, remedy: str) -> None:
    if not isinstance(node, dict) or "_target_" not in node:
        raise ConfigError(key, f"{shown(node)} is no option with a _target_; choose one: {remedy}")


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """(key, value) of everything that holds nothing else."""
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    else:
        yield key, value
        return
    for name, item in inner:
        yield from _leaves(item, f"{key}.{name}" if key else str(name))
