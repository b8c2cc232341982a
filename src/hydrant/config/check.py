"""Check a composed config as far as possible without data and without a device."""

from __future__ import annotations

import math
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from hydrant.clock import Duration
from hydrant.config.error_messages import explain_interpolation, unknown_key
from hydrant.config.schema import (
    DURATIONS,
    GROUPS,
    OPTIMIZER_POSITIVE,
    PARTIAL_GROUPS,
    POSITIVE,
    NamedOptimizer,
    OptimizerSettings,
    TrainConfig,
    check_name,
)
from hydrant.config.targets import check_targets
from hydrant.config.type_hints import accepts, check_value
from hydrant.errors import ConfigError, shown

_MAX_TIMEOUT_SECONDS = 366 * 24 * 3600


def check(config: DictConfig) -> dict[str, Any]:
    """Return the resolved config in plain types: dicts, lists, strings, numbers, booleans, None.

    Raises:
        ConfigError: A key is unknown; a value is missing, cannot be resolved, or has a wrong type or range; a target is
            not allowed or does not take one of its arguments.
    """
    plain = _plain(config)
    resolved = _typed("", TrainConfig, plain)
    resolved["optimizers"] = _complete_optimizers(resolved)
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
        if isinstance(value, str) and "${" in value:  # Hydra's instantiate would resolve it after all checks
            raise ConfigError(
                key, f"{shown(value)} is still an interpolation after it is resolved; write it without \\"
            )
    return {str(key): value for key, value in plain.items()}


def _typed(prefix: str, schema: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values`, checked against a schema. A number becomes text where text is needed."""
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
            value = str(value)  # YAML reads name=1 as a number
        check_value(key, hint, value)
        typed[name] = value
    return typed


def _check_values(resolved: Mapping[str, Any]) -> None:
    if resolved["name"] is not None:
        check_name(resolved["name"])
    _check_positive("", resolved, POSITIVE)
    if resolved["max_skipped"] < 0:
        raise ConfigError("max_skipped", f"needs 0 or more, not {resolved['max_skipped']}")
    for key in DURATIONS:
        if resolved[key] is not None or key == "duration":
            Duration.parse(resolved[key], key)
    for group in GROUPS:
        _check_group(group, resolved[group], f"{group}=<option>, see --help", partial=group in PARTIAL_GROUPS)
    _check_optimizer("", resolved)
    for name, settings in resolved["optimizers"].items():
        prefix = f"optimizers.{name}."
        for group in ("optimizer", "scheduler"):
            key = f"{prefix}{group}"
            _check_group(key, settings[group], f"+{group}@{key}=<option>, see --help", partial=True)
        _check_optimizer(prefix, settings)


def _check_parallel(settings: Mapping[str, Any]) -> None:
    """Check the numbers that are needed to start and supervise ranks."""
    for name, minimum in (("num_processes", 1), ("max_restarts", 0)):
        if settings.get(name, minimum) < minimum:
            raise ConfigError(f"parallel.{name}", f"needs {minimum} or more, not {settings[name]}")
    seconds = settings.get("timeout_seconds", 1)
    if not 0 < seconds <= _MAX_TIMEOUT_SECONDS:
        raise ConfigError(
            "parallel.timeout_seconds", f"needs more than 0 and at most one year, not {seconds}"
        )


def _complete_optimizers(resolved: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the named optimizers. Settings that one of them omits are those of the top level."""
    completed: dict[str, dict[str, Any]] = {}
    for name, node in resolved["optimizers"].items():
        if not name.isidentifier():
            raise ConfigError(f"optimizers.{name}", "is not a valid name; use letters, digits and '_'")
        check_value(f"optimizers.{name}", dict[str, Any], node)
        if name == "main":
            raise ConfigError(
                "optimizers.main",
                "main is reserved for the optimizer of a run that names none; choose another name",
            )
        settings = {"parts": None, "losses": None} | node
        for key in typing.get_type_hints(OptimizerSettings):
            value, common = node.get(key, {}), resolved[key]
            # A mapping without a _target_ changes single keys of the top-level setting.
            extends = isinstance(value, dict) and isinstance(common, dict) and "_target_" not in value
            settings[key] = common | value if extends else node.get(key, common)
        completed[name] = _typed(f"optimizers.{name}.", NamedOptimizer, settings)
    return completed


def _check_positive(prefix: str, settings: Mapping[str, Any], keys: Sequence[str]) -> None:
    for key in keys:
        if settings[key] not in (None, "auto") and settings[key] <= 0:
            raise ConfigError(f"{prefix}{key}", f"needs a number above 0, not {settings[key]}")


def _check_group(key: str, node: Any, remedy: str, *, partial: bool) -> None:
    _check_part(key, node, remedy)
    if partial and not node.get("_partial_"):
        message = "needs true, because the run adds arguments later; add _partial_: true to the option"
        raise ConfigError(f"{key}._partial_", message)


def _check_optimizer(prefix: str, settings: Mapping[str, Any]) -> None:
    """Check the ranges of an optimizer's settings, its schedules and the schedules of its param groups."""
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
        nodes = {key: node} if not isinstance(node, dict) or "_target_" in node else {
            f"{key}.{position}": inner for position, inner in node.items()
        }  # fmt: skip
        for inner_key, inner in nodes.items():  # {betas: {0: ...}} schedules betas.0
            _check_part(inner_key, inner, f"+scheduler@{inner_key}=linear")


def _check_part(key: str, node: Any, remedy: str) -> None:
    if not isinstance(node, dict) or "_target_" not in node:
        raise ConfigError(key, f"{shown(node)} is not a config with a _target_; choose an option: {remedy}")


def _leaves(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of every value that is neither a dict nor a list."""
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    else:
        yield key, value
        return
    for name, item in inner:
        yield from _leaves(item, f"{key}.{name}" if key else str(name))
