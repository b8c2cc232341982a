"""Check a composed config as far as possible without data and without a device, and its node `hydra`.

That node names a sweeper, a launcher and the handlers of logs, which are imported and called before a run starts, and
any config file can set it.
"""

import inspect
import json
import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf, read_write
from omegaconf.errors import OmegaConfBaseException

from hydrant.clock import Duration
from hydrant.config import groups
from hydrant.config.error_messages import explain, unknown_key
from hydrant.config.instantiate import as_config_error, check_arguments, check_signatures, declared_by_node
from hydrant.config.metric_keys import resolve_best, resolve_plateaus
from hydrant.errors import ConfigError, first_line, shown
from hydrant.files.plain_values import accepts, check_value, children, hints_of, leaves
from hydrant.files.read_file import check_plain
from hydrant.installation import entry_points
from hydrant.safety.targets import check_targets, exporting_packages, lies_under, locate, with_own_packages
from hydrant.safety.trust import check_consent, keys_set_by, working_project

T = TypeVar("T")

_EXAMPLES = {"hooks.freeze.stages": "'hooks.freeze.stages=[{match: backbone, until: 2ep}]'"}
"""Examples of overrides for keys without a default whose values have a special form."""


def check(config: DictConfig) -> dict[str, Any]:
    """Return the resolved config in plain types: dicts, lists, strings, numbers, booleans, None.

    The modes `auto` of `best` and of plateaus are resolved too, so that every reader of a run's config agrees about
    them. A number of the data without a value, to which another group refers, is written into `config`.

    Raises:
        ConfigError: A key is unknown; a value is missing, cannot be resolved, or has a wrong type or range; a target is
            not allowed or does not take one of its arguments.
    """
    plain = _plain(config)
    groups.check_placed(plain)
    if isinstance(sizes := plain.get("global_batch_size"), dict):
        plain["global_batch_size"] = {str(begin): size for begin, size in sizes.items()}
    resolved = _typed("", groups.TrainConfig, plain)
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
    if numbers := _declared_by_data(config, resolved):
        with read_write(config):
            config.data.update(numbers)
        return check(config)
    resolve_plateaus(resolved)
    check_signatures(resolved)
    resolved["best"] = resolve_best(resolved)
    return resolved


def _declared_by_data(config: DictConfig, resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers that the training set has as attributes, where other groups refer to keys without a value.

    Raises:
        ConfigError: the data set cannot be built.
    """
    node = resolved["data"].get("train")
    raw = leaves(OmegaConf.to_container(config, resolve=False)) if isinstance(node, dict) else ()
    texts = [value for key, value in raw if isinstance(value, str) and not key.startswith("data.")]
    missing = {name for name, value in resolved["data"].items() if value is None}
    asked = {name for name in missing if any(f"data.{name}" in text for text in texts)}
    if not asked:
        return {}
    with as_config_error("data.train", node):
        declared = declared_by_node(json.dumps(node))
    return {name: value for name, value in declared.items() if name in asked and value is not None}


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
        groups.check_name(resolved["name"])
    sizes = resolved["global_batch_size"]
    durations = [("global_batch_size", begin) for begin in (sizes if isinstance(sizes, dict) else ())]
    durations += [
        (key, resolved[key]) for key in groups.DURATIONS if key == "duration" or resolved[key] is not None
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
    names = resolved["parallel"].keys() & hints_of(groups.Ranks)
    _typed("parallel.", groups.Ranks, {name: resolved["parallel"][name] for name in names})


def _parts(resolved: Mapping[str, Any]) -> Iterator[tuple[str, Any, str, bool]]:
    """Yield the parts of a config: the key and the node of each, how to give it, and whether it must be partial."""
    for group in groups.GROUPS:
        yield group, resolved[group], f"{group}=<option>, see --help", group in groups.PARTIAL_GROUPS
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
        for key in hints_of(groups.OptimizerSettings):
            common = resolved[key]
            value = settings.setdefault(key, common)
            if isinstance(value, dict) and isinstance(common, dict) and "_target_" not in value:
                settings[key] = common | value  # it changes only some keys of the top-level setting
        completed[name] = _typed(f"optimizers.{name}.", groups.NamedOptimizer, settings)
    return completed


def _check_part(key: str, node: Any, remedy: str, is_partial: bool) -> None:
    if not isinstance(node, dict) or "_target_" not in node:
        if isinstance(node, str) and key in groups.GROUPS:  # a config file names the option as a value
            remedy = groups.in_defaults(key, node)
        remedy = f"choose an option: {remedy}"
        if isinstance(node, dict) and key in groups.GROUPS:
            by_target = "name its class or function by _target_"
            how = "begin it with `defaults: [dataset]`" if key == "data" else by_target
            remedy += f"; in an option of yours, {how}"
        raise ConfigError(key, f"{shown(node)} is not a config with a _target_", remedy=remedy)
    if is_partial and not node.get("_partial_"):
        message = "needs true, because the run adds arguments later"
        raise ConfigError(f"{key}._partial_", message, remedy="add _partial_: true to the option")


_SWEEPERS = ("hydrant.sweeps", "optuna.samplers", "optuna.pruners")
_LAUNCHERS = ("hydrant.sweeps.executors",)
_LOGGING = ("logging.StreamHandler", "logging.FileHandler", "logging.NullHandler", "logging.Formatter",
            "ext://sys.stdout", "ext://sys.stderr",
            # Hydra's own log file. Other files are refused: with a format of its choice, a config could write a program
            # into one.
            "${hydra.runtime.output_dir}/${hydra.job.name}.log")  # fmt: skip
"""What the logging configs of Hydra may create, and the streams and the file that they may write to."""

_ALLOWED = {"sweeper": _SWEEPERS, "launcher": _LAUNCHERS, "job_logging": _LOGGING, "hydra_logging": _LOGGING}
"""What each key of the `hydra` node may name. `class_of` checks the classes of sweepers and launchers."""

_WHY_NO_PLUGIN = {
    "launcher": "it composes each config again when its job starts",
    "sweeper": "it cannot check, stop and resume the runs of a sweep",
}
_REFUSED = {
    "output_subdir": "needs null: the run writes .hydra/ itself, without secrets",
    "job.chdir": "is not possible: the paths of a config begin in the folder of the command; leave it out",
    "callbacks": "Hydra's callbacks are not called; choose or write a hook: hook=<option>",
}
"""Keys of the `hydra` node that have no effect here: why, and what to do."""

_VARIABLES = ("TORCH_LOGS",)
"""The environment variables that a config file may set, because their values name no code."""

_CALLED = ("_target_", "()", "class", "filename")
"""Keys whose value is imported and called, or opened for writing."""

_REFERENCE = re.compile(r"(?s)\$\{(?!hydra[.:](?!runtime\.choices\b)(job|run|runtime|sweep)\.[\w.]+\}$).*\}")
"""A value that begins and ends as an interpolation, other than one of `${hydra.job|run|runtime|sweep...}`.

It may resolve to a node with a `_target_` elsewhere in the config. `runtime.choices` may hold such a node too."""

_INTERPOLATION = re.compile(r"\$\{")
"""What begins an interpolation, anywhere in a text."""


def is_basic_launcher(target: object) -> bool:
    """Return whether a `_target_` is that of `hydra/launcher=basic`, Hydra's default. It is never imported.

    In its place, Hydrant runs one job after another.
    """
    return str(target).startswith("hydra.") and str(target).endswith(".BasicLauncher")


def check_hydra_node(config: DictConfig, words: Sequence[str]) -> None:
    """Refuse a `hydra` node that would run code which is not allowed here or in `allow_targets`, or write secrets.

    Args:
        config: as Hydra composed it, with the node.
        words: those of the command line.

    Raises:
        ConfigError: Names the key.
    """
    raw: Any = OmegaConf.to_container(config, resolve=False)
    packages = raw.get("allow_targets")
    check_consent(packages, words)
    trusted = tuple(map(str, packages)) if isinstance(packages, list) else ()
    hydra: Mapping[str, Any] = raw.get("hydra") or {}
    job: Mapping[str, Any] = hydra.get("job") or {}
    _check_job(job, words)
    for name in filter({**hydra, "job.chdir": job.get("chdir")}.get, _REFUSED):
        reason, _, remedy = _REFUSED[name].partition("; ")
        raise ConfigError(f"hydra.{name}", reason, remedy=remedy)
    for name, allowed in _ALLOWED.items():
        is_part, packages = allowed is not _LOGGING, (*allowed, *exporting_packages())
        for key, value in _called_values(hydra.get(name), f"hydra.{name}", has_references=is_part):
            if name == "launcher" and is_basic_launcher(value):
                continue
            if is_part and lies_under(value, ("hydra_plugins",)):
                reason = f"{shown(value)} is not allowed: {_WHY_NO_PLUGIN[name]}"
                options = groups.group_options().get(f"hydra/{name}", ["basic"])
                raise ConfigError(f"hydra/{name}", reason, remedy=f"use one of {', '.join(options)}")
            is_allowed = lies_under(value, packages) if is_part else value in allowed
            if not (is_allowed or _is_trusted(value, key, trusted)):
                message = f"{shown(value)} is not allowed, because it would be called or written to"
                remedy = "If you trust it, add its package: 'allow_targets=[my_package]'"
                raise ConfigError(key, message, remedy=remedy)


def check_receiver(config: DictConfig, words: Iterable[str]) -> None:
    """Refuse a tracker's receiver, such as `tracker.entity`, that is neither on the command line nor in its variable.

    The entry points `hydrant.receivers` name such keys of trackers, with the variable in which the user may name one.
    The config may contain values of the user's environment variables, which it reads with `oc.env`.
    """
    further: Any = config.get("trackers") or {}
    if not isinstance(further, (DictConfig, dict)) or not all(str(name).isidentifier() for name in further):
        needs = "names of letters, digits and '_', each with the settings of a tracker"
        raise ConfigError("trackers", needs=needs)
    nodes = ["tracker", *(f"trackers.{name}" for name in further)]
    receivers = entry_points("hydrant.receivers").values()
    for key, variable in ((f"{node}.{point.name}", point.value) for node in nodes for point in receivers):
        try:
            receiver: Any = OmegaConf.select(config, key)
        except OmegaConfBaseException:  # it depends on values that Hydra sets later
            receiver = f"<{variable}>"
        if receiver in (None, os.environ.get(variable)) or key in keys_set_by(words):
            continue
        words = [shlex.quote(f"{name}={receiver}") for name in (key, variable)]
        remedy = f"if you trust it, add {words[0]} to the command line, or set {words[1]}"
        raise ConfigError(key, f"a config file sends the results to {shown(receiver)}", remedy=remedy)


def class_of(path: str, key: str, kind: str, base: type[T]) -> type[T]:
    """Return the class that a checked path names: as a sweeper or a launcher, it extends `base`.

    Raises:
        ConfigError: it is none, or the package of its name only imports it from elsewhere.
    """
    target: Any = locate(path, f"{key}._target_")
    is_own = inspect.isclass(target) and target.__module__.partition(".")[0] == path.partition(".")[0]
    if not (is_own and issubclass(target, base)):
        raise ConfigError(f"{key}._target_", f"{path} is no {kind}")
    return target


def built(node: Mapping[str, Any], key: str, kind: str, base: type[T]) -> T:
    """Return the object of a checked node that names a class that extends `base`.

    Raises:
        ConfigError: the class takes other arguments, or refuses them.
    """
    target = class_of(str(node["_target_"]), key, kind, base)
    check_arguments(key, node)
    with as_config_error(key, node):
        return target(**{name: value for name, value in node.items() if name != "_target_"})


def _check_job(job: Mapping[str, Any], words: Sequence[str]) -> None:
    """Check `hydra.job`: environment variables from config files, and the name that becomes a file name."""
    set_by_user = keys_set_by(words)
    variables = job.get("env_set") or {}
    if not isinstance(variables, Mapping):
        raise ConfigError("hydra.job.env_set", needs="a mapping of names to values", got=variables)
    for name, value in variables.items():
        key = f"hydra.job.env_set.{name}"
        if os.environ.get(name) == value:  # of `env_copy`
            continue
        if name not in _VARIABLES and not set_by_user & {key, "hydra.job.env_set"}:
            reason = "a variable may name code to load; set it on the command line"
            raise ConfigError(key, f"cannot be set in a config file, because {reason}")
    if not re.fullmatch(r"[\w.-]+", title := str(job.get("name"))):
        message = f"{shown(title)} is not a valid file name"
        raise ConfigError("hydra.job.name", message, remedy="use letters, digits, '.', '_' and '-'")


def _is_trusted(value: Any, key: str, packages: Sequence[str]) -> bool:
    """Whether `value` lies in one of these packages. The package of a trusted working folder must be its own, see
    `trust`."""
    if not lies_under(value, packages):
        return False
    if (project := working_project()).named_by([value]):
        project.check_origin(value, key)
        project.check_definition(value, locate(value, key), key)
    return True


def _called_values(value: Any, key: str, *, has_references: bool = True) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of everything that would be imported and called, or may resolve to something that is.

    Without `has_references`, these are all interpolations, because Python's logging also imports parts of texts.
    """
    is_reference = _REFERENCE.fullmatch if has_references else _INTERPOLATION.search
    if isinstance(value, str) and (value.startswith("ext://") or is_reference(value)):
        yield key, value
    for inner_key, item in children(value, key):
        if inner_key.rpartition(".")[2] in _CALLED and item is not None:
            yield inner_key, item
        else:
            yield from _called_values(item, inner_key, has_references=has_references)
