"""Check which objects a config may call (`_target_`), and whether they take the config's arguments.

This module is security relevant: a config file of a stranger must not be able to run code. A target is allowed only if
it is a part of Hydrant, a class of `LIBRARIES` that builds a module, metric, optimizer or scheduler, or in a package
that the user trusts with `allow_targets`.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Literal

from hydrant.clock import Duration, converted
from hydrant.config.consent import consented_packages
from hydrant.config.distribution import extra_of, install_command
from hydrant.config.flat import children
from hydrant.config.foreign_words import own_words
from hydrant.config.import_without_gc import import_without_gc
from hydrant.config.loaded_files import check_loads_nothing
from hydrant.config.trust import NO_PROJECT, Project, could_be_trusted, working_project
from hydrant.config.type_hints import check_value
from hydrant.errors import ConfigError, nearest, shown, suggestion, typed_line

_OPEN_PACKAGES = ("hydrant.data", "hydrant.hooks", "hydrant.models", "hydrant.optimizers", "hydrant.schedules",
                  "hydrant.tasks", "hydrant.trackers", "hydrant.training.precision")  # fmt: skip
"""The packages and modules to which new parts are added. Their classes and functions are parts, also if the package
does not export them (CONTRIBUTING.md)."""

_HELPERS = (
    "hydrant.data.archive",
    "hydrant.data.workers",
    "hydrant.trackers.wandb_media",
    "hydrant.trackers.wandb_sdk",
    "hydrant.trackers.wandb_sweeps",
)
"""Modules in these packages that read files, or call objects, which their arguments name. They define no parts."""

_TRAINING = "hydrant.training"
"""The package in which only what it exports is a part."""

_TRACKERS = ("hydrant.trackers",)
"""Trackers. They send values of the config to a receiver, which a config file may choose nowhere else."""
LIBRARIES = ("torch.nn", "torch.optim", "torchvision.models", "torchvision.ops", "torchvision.transforms",
             "timm.layers", "timm.loss", "timm.models", "timm.optim", "torchmetrics", "torchao.optim")  # fmt: skip
"""The packages whose modules, metrics, optimizers and schedulers are allowed, because these classes never import or
call an object by a name that they get as an argument. Functions are not allowed, except torchvision's model builders:
other functions of these packages load files and call objects by name. `check_loads_nothing` refuses arguments."""

_ALWAYS = ("torch._dynamo", "torch.utils.flop_counter")  # every run imports these, and that is slow

_HYDRA_KEYS: Mapping[str, Any] = {"_target_": str, "_partial_": bool, "_recursive_": bool, "_args_": list,
                                  "_convert_": Literal["none", "partial", "object", "all"]}  # fmt: skip
"""The keys of a node that Hydra reads, and their types."""


def check_targets(config: Mapping[str, Any]) -> None:
    """Refuse targets that are not allowed, do not exist or do not take an argument of the config.

    Raises:
        ConfigError: Names the key.
    """
    trusted: Sequence[str] = config["allow_targets"]
    nodes = list(target_nodes(config, ""))
    for key, node in nodes:  # check every path before the first import
        path = node["_target_"]
        if not lies_under(path, trusted) and (not lies_under(path, ("hydrant", *LIBRARIES)) or "._" in path):
            raise _not_allowed(key, path)
    project = _project_of(node["_target_"] for _, node in nodes)
    for key, node in nodes:
        project.check_origin(node["_target_"], f"{key}._target_")
    targets = list[Any]()
    for key, node in nodes:
        path = node["_target_"]
        is_trusted = lies_under(path, trusted)
        # import_without_gc would exclude the objects of a user's module from garbage collection.
        with contextlib.nullcontext() if is_trusted else import_without_gc():
            target = locate(path, f"{key}._target_")
        if not is_trusted and not _is_part(target):
            raise _not_allowed(key, path)
        project.check_definition(path, target, f"{key}._target_")
        if lies_under(target.__module__, _TRACKERS) and not re.fullmatch(r"tracker|trackers\.\w+", key):
            raise ConfigError(f"{key}._target_", f"{shown(path)} is a tracker; choose it with tracker=")
        targets.append(target)
    for (key, node), target in zip(nodes, targets, strict=True):
        _check_signature(key, node, target)
        if lies_under(target.__module__, LIBRARIES) and not lies_under(node["_target_"], trusted):
            check_loads_nothing(key, {**_positional(node, inspect.signature(target).parameters), **node})


def with_own_packages(config: Mapping[str, Any]) -> list[str]:
    """Return `allow_targets` with the packages that the targets of a config name, and that the user trusts elsewhere.

    These are the packages of the trusted working folder, and those of the variable HYDRANT_ALLOW_TARGETS.
    """
    trusted: list[str] = config["allow_targets"]
    paths = [path for _, path in targets_of(config) if not lies_under(path, trusted)]
    consented = [name for name in consented_packages() if any(lies_under(path, [name]) for path in paths)]
    own = _project_of(paths).named_by(path for path in paths if not lies_under(path, consented))
    return [*trusted, *consented, *own]


def _project_of(paths: Iterable[object]) -> Project:
    """Return the trusted project in the working folder; no project if these targets need none."""
    needs_one = not all(lies_under(path, ("hydrant", *LIBRARIES)) for path in paths)
    return working_project() if needs_one else NO_PROJECT


def lies_under(path: object, packages: Sequence[str]) -> bool:
    """Whether a dotted path is one of these packages or lies in one."""
    return isinstance(path, str) and any(path == p or path.startswith(f"{p}.") for p in packages)


def _is_part(target: Any) -> bool:
    """Whether a target is a part, judged by the module that defines it: `torch.nn.modules.os.system` is not."""
    home = getattr(target, "__module__", None)  # a builtin has none
    name = getattr(target, "__qualname__", ".")
    if lies_under(home, _OPEN_PACKAGES):
        return "." not in name and not lies_under(home, _HELPERS)  # a method is not a part
    if lies_under(home, (_TRAINING,)):
        return getattr(importlib.import_module(_TRAINING), name, None) is target
    from torch import nn, optim

    kinds = (nn.Module, optim.Optimizer, optim.lr_scheduler.LRScheduler)
    if inspect.isclass(target):
        return lies_under(home, LIBRARIES) and issubclass(target, kinds)
    return lies_under(home, ["torchvision.models"]) and _builds_a_model(target)


def _builds_a_model(target: Any) -> bool:
    """Whether a function is one of torchvision's registered model builders, such as `resnet18`."""
    from torchvision.models import get_model_builder, list_models

    name = getattr(target, "__name__", "")
    return name in list_models() and get_model_builder(name) is target


def _not_allowed(key: str, target: object) -> ConfigError:
    package = str(target).partition(".")[0]
    own = (
        ". If this folder is your project, trust it once: hydrant trust" if could_be_trusted(package) else ""
    )
    return ConfigError(
        f"{key}._target_",
        f"{shown(target)} is not allowed: a _target_ must be a part of hydrant, a module, metric, optimizer or "
        f"scheduler of {', '.join(LIBRARIES)}, or lie in a package of allow_targets. If you trust it, add its "
        f"package: 'allow_targets=[my_package]'{own}",
    )


def check_arguments(key: str, node: Mapping[str, Any]) -> None:
    """Refuse arguments that a node's target does not take, or takes with another type.

    Raises:
        ConfigError: Names the key.
    """
    _check_signature(key, node, locate(node["_target_"], key))


def targets_of(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (key, dotted path) of every target in a config."""
    for key, node in target_nodes(config, ""):
        yield f"{key}._target_", node["_target_"]


def preload_paths(configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the dotted paths that `preload` takes, so that a fork server imports in advance what these configs need.

    They are the modules that every run imports, and Hydrant's parts. The configs need not be checked: nothing outside
    of Hydrant is among the paths.
    """
    parts = {path for config in configs for _, path in targets_of(config) if lies_under(path, ["hydrant"])}
    return sorted({*_ALWAYS, *parts})


def preload(path: str) -> None:
    """Import a module, or the module of a part and those that its `PRELOAD` lists for the part.

    What does not exist is left out: the job that needs it reports it.
    """
    with contextlib.suppress(ImportError, ConfigError):
        try:
            importlib.import_module(path)
        except ModuleNotFoundError:
            target = locate(path, "")
            listed = getattr(sys.modules[target.__module__], "PRELOAD", {})
            for name in listed.get(target.__name__, ()):
                importlib.import_module(name)


def import_targets(config: Mapping[str, Any]) -> None:
    """Import the targets of a config, because an import may register something, such as a torch.compile backend.

    Also import the slow modules that every run needs.
    """
    for key, target in targets_of(config):
        locate(target, key)
    with import_without_gc():
        for name in _ALWAYS:
            importlib.import_module(name)


def locate(path: str, key: str) -> Any:
    """Import and return the callable that a dotted path names.

    Raises:
        ConfigError: It does not exist, cannot be imported or is not callable. Suggests the nearest name.
    """
    head, *rest = path.split(".")
    target = _import(head, path, key)
    if target is None:
        extra = extra_of(head)
        remedy = (
            "is it installed, or in this folder?"
            if extra is None
            else f"install it: {install_command(extra)}"
        )
        raise ConfigError(key, f"no module {head!r}; {remedy}")
    for depth, part in enumerate(rest, start=1):
        name, owner = ".".join((head, *rest[: depth - 1])), target
        target = getattr(owner, part, None)
        if target is None and isinstance(owner, types.ModuleType):
            target = _import(f"{name}.{part}", path, key)
        if target is None:
            close = nearest(part, dir(owner))
            hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else "; is it spelt right?"
            raise ConfigError(key, f"{name} has no {part!r}{hint}")
    if not callable(target):
        raise ConfigError(key, f"{path} is a {type(target).__name__}, not a class or a function")
    return target


def takes(path: object, name: str) -> bool:
    """Whether a target takes an argument. A target that may not be imported before it is checked is taken to do so."""
    if not lies_under(path, ("hydrant", *LIBRARIES)) or "._" in str(path):
        return True
    try:
        parameters = inspect.signature(locate(str(path), "")).parameters
    except (ConfigError, ValueError):  # ValueError: a builtin without a signature
        return True
    return name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def _import(name: str, path: str, key: str) -> Any:
    """Import and return the module `name`; None if it does not exist."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise ConfigError(key, f"{path} needs {error.name!r}, which is not installed") from error
    except Exception as error:  # the import of a user's module may raise anything
        raise ConfigError(key, f"{name} cannot be imported: {typed_line(error)}") from error


def target_nodes(value: Any, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (key, node) of every node with a `_target_` in `value`, the config's value at `key`."""
    if isinstance(value, Mapping) and "_target_" in value:
        yield key, value
    for inner_key, inner in children(value, key):
        yield from target_nodes(inner, inner_key)


def _check_signature(key: str, node: Mapping[Any, Any], target: Any) -> None:
    """Check the arguments of a node, whose keys may also be numbers."""
    try:
        parameters = inspect.signature(target).parameters
    except ValueError:  # a builtin without a signature
        return
    hints = type_hints_of(target)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    if _awaits_optimizer(target, parameters, node):
        node = _of_stepped(key, node, parameters)
    for name, value in node.items():
        if name in _HYDRA_KEYS:
            check_value(f"{key}.{name}", _HYDRA_KEYS[name], value)
            continue
        if not isinstance(name, str) or (name not in parameters and not takes_any):
            words = own_words(f"{key}.{name}", str(value))
            hint = f"; {words}" if words else suggestion(str(name), parameters, "Arguments")
            raise ConfigError(f"{key}.{name}", f"{node['_target_']} has no argument {name!r}{hint}")
        if name in hints:
            check_value(f"{key}.{name}", hints[name], value)
    for index, (name, value) in enumerate(_positional(node, parameters).items()):
        if name in hints:
            check_value(f"{key}._args_.{index}", hints[name], value)
    if not node.get("_partial_", False):
        _check_complete(key, node, parameters)


def _positional(node: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Return a node's `_args_` by the names of the parameters that take them.

    torchvision's model builders also take keyword-only parameters by position.
    """
    named = takewhile(lambda p: p.kind is not inspect.Parameter.VAR_POSITIONAL, parameters.values())
    return dict(zip((p.name for p in named), node.get("_args_") or (), strict=False))


def _awaits_optimizer(target: Any, parameters: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Whether a target is a scheduler with a `step` method, or a function that returns one."""
    is_torch_class = inspect.isclass(target) and any(
        base.__name__ == "LRScheduler" for base in target.__mro__
    )
    by_name = "optimizer" in parameters and "optimizer" not in node
    return is_torch_class or hasattr(target, "get_updated_values") or by_name


def _of_stepped(key: str, node: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a scheduler with a `step` method gets, with 1 for every duration."""
    if "every" in node:
        Duration.parse(node["every"], f"{key}.every")
        if "every" in parameters:
            message = (
                f"{node['_target_']} has an argument of this name, which the run uses; rename the argument"
            )
            raise ConfigError(f"{key}.every", message)
    return converted({name: value for name, value in node.items() if name != "every"}, lambda _: 1)


def _check_complete(key: str, node: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> None:
    optional = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for name, parameter in parameters.items():
        required = parameter.default is inspect.Parameter.empty and parameter.kind not in optional
        if required and name not in node and "_args_" not in node:
            message = f"{node['_target_']} needs a value; give +{key}.{name}=<value>"
            raise ConfigError(f"{key}.{name}", message)


def type_hints_of(target: Any) -> dict[str, Any]:
    """Return the type hints of the arguments of a class or function; none if type checkers alone can resolve them."""
    try:
        return typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except (NameError, TypeError, AttributeError):  # a hint uses names that exist for type checkers only
        return {}
