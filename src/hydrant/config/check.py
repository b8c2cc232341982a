"""Check a composed config as far as possible without data and without a device."""

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hydrant.clock import Duration
from hydrant.config import schema
from hydrant.config.error_messages import explain, unknown_key
from hydrant.config.groups import check_placed, in_defaults
from hydrant.config.instantiate import check_signatures
from hydrant.config.metric_keys import resolve_best, resolve_plateaus
from hydrant.errors import ConfigError, first_line, shown
from hydrant.files.plain_values import accepts, check_value, children, hints_of, leaves
from hydrant.files.read_file import check_plain
from hydrant.safety.targets import check_targets, with_own_packages

_EXAMPLES = {"hooks.freeze.stages": "'hooks.freeze.stages=[{match: backbone, until: 2ep}]'"}
"""Examples of overrides for keys without a default whose values have a special form."""


def check(config: DictConfig) -> dict[str, Any]:
    """Return the resolved config in plain types: dicts, lists, strings, numbers, booleans, None.

    The modes `auto` of `best` and of plateaus are resolved too, so that every reader of a run's config agrees about
    them.

    Raises:
        ConfigError: A key is unknown; a value is missing, cannot be resolved, or has a wrong type or range; a target is
            not allowed or does not take one of its arguments.
    """
    plain = _plain(config)
    check_placed(plain)
    if isinstance(sizes := plain.get("global_batch_size"), dict):
        plain["global_batch_size"] = {str(begin): size for begin, size in sizes.items()}
    resolved = _typed("", schema.TrainConfig, plain)
    resolved["optimizers"] = _complete_optimizers(resolved)
    for key, value in leaves(resolved):
        if isinstance(value, float) and math.isnan(value):
            raise ConfigError(key, needs="a number, not nan")
        try:
            check_plain(value)
        except ValueError as error:
            message = f"{first_line(error)}, which the record of a run cannot hold"
            raise ConfigError(key, message, remedy="give another value") from error
    _check_values(resolved)
    resolved["allow_targets"] = with_own_packages(resolved)
    check_targets(resolved)
    resolve_plateaus(resolved)
    check_signatures(resolved)
    resolved["best"] = resolve_best(resolved)
    return resolved


def _plain(config: DictConfig) -> dict[str, Any]:
    try:
        plain: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        # A missing value is the first thing to say.
        _check_complete(OmegaConf.to_container(config, resolve=False))
        raise explain(error) from error
    _check_complete(plain)
    for key, value in leaves(plain):
        if isinstance(value, str) and "${" in value:  # Hydra's instantiate would resolve it after all checks
            message = f"{shown(value)} is still an interpolation after it is resolved"
            raise ConfigError(key, message, remedy="write it without \\")
    return {str(key): value for key, value in plain.items()}


def _check_complete(plain: Any) -> None:
    for key, value in leaves(plain):
        if value == "???":
            raise ConfigError(key, "needs a value", remedy=f"give {_EXAMPLES.get(key, f'{key}=<value>')}")


def _typed(prefix: str, fields: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `values`, checked against the fields of a dataclass. A number becomes a string where one is needed."""
    hints = hints_of(fields)
    for name in values:
        if name not in hints:
            raise unknown_key(f"{prefix}{name}", hints)
    typed: dict[str, Any] = {}
    for name, hint in hints.items():
        key = f"{prefix}{name}"
        if name not in values:
            raise ConfigError(key, "needs a value", remedy=f"give {key}=<value>")
        value = values[name]
        if is_dataclass(hint):
            check_value(key, dict[str, Any], value)
            value = _typed(f"{key}.", hint, value)
        else:
            if accepts(hint, "") and hint is not Any and type(value) in (int, float):
                value = str(value)  # YAML reads name=1 as a number
            check_value(key, hint, value)
        typed[name] = value
    return typed


def _check_values(resolved: Mapping[str, Any]) -> None:
    if resolved["name"] is not None:
        schema.check_name(resolved["name"])
    sizes = resolved["global_batch_size"]
    durations = [("global_batch_size", begin) for begin in (sizes if isinstance(sizes, dict) else ())]
    durations += [
        (key, resolved[key]) for key in schema.DURATIONS if key == "duration" or resolved[key] is not None
    ]
    for key, duration in durations:
        Duration.parse(duration, key)
    if resolved["fold"] >= (folds := resolved["folds"] or 1):
        raise ConfigError("fold", needs=f"a number below folds={folds}", got=resolved["fold"])
    if resolved["deterministic"] and resolved["cudnn_benchmark"] is True:
        message = "makes results depend on timing, which deterministic=true excludes"
        raise ConfigError("cudnn_benchmark", message, remedy="use cudnn_benchmark=auto")
    for part in _parts(resolved):
        _check_part(*part)


def _parts(resolved: Mapping[str, Any]) -> Iterator[tuple[str, Any, str, bool]]:
    """Yield the parts of a config: the key and the node of each, how to give it, and whether it must be partial."""
    for group in schema.GROUPS:
        yield group, resolved[group], f"{group}=<option>, see --help", group in schema.PARTIAL_GROUPS
    for key, node in children(resolved["trackers"], "trackers"):
        yield key, node, f"+tracker@{key}=<option>, see --help", True
    for key, node in children(resolved["hooks"], "hooks"):
        yield key, node, "hook=<option>, see --help", False
    for key, node in children(resolved["task"].get("metrics"), "task.metrics"):
        if isinstance(node, str):
            example = "{_target_: torchmetrics.classification.MulticlassF1Score, num_classes: 10}"
            yield key, node, shlex.quote(f"+{key}={example}"), False
    for name, settings in {"": resolved, **resolved["optimizers"]}.items():
        prefix = f"optimizers.{name}." if name else ""
        for group in ("optimizer", "scheduler") if name else ():
            yield f"{prefix}{group}", settings[group], f"+{group}@{prefix}{group}=<option>, see --help", True
        if "lr" in settings["schedules"]:
            message = "lr is scheduled by scheduler"
            raise ConfigError(f"{prefix}schedules.lr", message, remedy="remove it here")
        patterns = children(settings["param_groups"]["patterns"], f"{prefix}param_groups.patterns")
        rules = {f"{key}.schedules": rule.get("schedules", {}) for key, rule in patterns}
        for key, schedules in {f"{prefix}schedules": settings["schedules"], **rules}.items():
            check_value(key, dict[str, Any], schedules)
            for field, node in children(schedules, key):
                is_nested = isinstance(node, dict) and "_target_" not in node  # {betas: {0: ...}}: betas.0
                for inner_key, inner in children(node, field) if is_nested else [(field, node)]:
                    yield inner_key, inner, f"+scheduler@{inner_key}=linear", False


def _complete_optimizers(resolved: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the named optimizers. Settings that one of them omits are those of the top level."""
    completed: dict[str, dict[str, Any]] = {}
    for name, node in resolved["optimizers"].items():
        if not name.isidentifier() or name == "main":  # that of a run that names none
            remedy = "use letters, digits and '_', but not main"
            raise ConfigError(f"optimizers.{name}", "is not a valid name", remedy=remedy)
        check_value(f"optimizers.{name}", dict[str, Any], node)
        settings = {"parts": None, "losses": None} | node
        for key in hints_of(schema.OptimizerSettings):
            common = resolved[key]
            value = settings.setdefault(key, common)
            if isinstance(value, dict) and isinstance(common, dict) and "_target_" not in value:
                settings[key] = common | value  # it changes only some keys of the top-level setting
        completed[name] = _typed(f"optimizers.{name}.", schema.NamedOptimizer, settings)
    return completed


def _check_part(key: str, node: Any, remedy: str, is_partial: bool) -> None:
    if not isinstance(node, dict) or "_target_" not in node:
        if isinstance(node, str) and key in schema.GROUPS:  # a config file names the option as a value
            remedy = in_defaults(key, node)
        remedy = f"choose an option: {remedy}"
        if isinstance(node, dict) and key in schema.GROUPS:
            is_data, by_target = key == "data", "name its class or function by _target_"
            remedy += (
                f"; in an option of yours, {'begin it with `defaults: [dataset]`' if is_data else by_target}"
            )
        raise ConfigError(key, f"{shown(node)} is not a config with a _target_", remedy=remedy)
    if is_partial and not node.get("_partial_"):
        message = "needs true, because the run adds arguments later"
        raise ConfigError(f"{key}._partial_", message, remedy="add _partial_: true to the option")
