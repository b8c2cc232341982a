"""Check which objects a config may call (`_target_`), and with which arguments.

This module is security relevant: a config file of a stranger must not be able to run code. Allowed are parts of
Hydrant, packages that the user trusts with `allow_targets`, and classes of `LIBRARIES` that build a module, metric,
optimizer or scheduler. An argument with which a library would read or download a file is refused: the file may contain
code.
"""

import contextlib
import importlib
import inspect
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from hydrant.errors import ConfigError, nearest, shown, typed_line
from hydrant.files.plain_values import children
from hydrant.imports import paused_gc
from hydrant.installation import extra_of, install_command, named_packages
from hydrant.safety.trust import NO_PROJECT, Project, consented_packages, could_be_trusted, working_project

_LOADED = re.compile(
    r"(?!.*drop_path)(.*_)?(path|dir|folder|file|filename|url|uri|checkpoint)s?|pretrained_cfg.*"
)
"""The names of such arguments. Those like `drop_path` are ratios."""


def check_loads_nothing(key: str, arguments: Mapping[str, Any]) -> None:
    """Refuse arguments for a library that name a file or an address. `key` is the config key of the arguments.

    Raises:
        ConfigError: Names the key.
    """
    for name, value in arguments.items():
        if _LOADED.fullmatch(str(name)) and not isinstance(value, bool | int | float | None):
            message = "is not allowed, because the library would load what it names"
            raise ConfigError(f"{key}.{name}", message, remedy="to load weights, use init_from")


_OPEN_PACKAGES = ("hydrant.data", "hydrant.models", "hydrant.optimizers", "hydrant.schedules",
                  "hydrant.tasks", "hydrant.trackers", "hydrant.training.precision")  # fmt: skip
"""The packages and modules to which new parts are added. Their classes and functions are parts, also if the package
does not export them (CONTRIBUTING.md)."""

_HELPERS = ("hydrant.data.workers",)
"""Modules in these packages that read or write files, or call objects, which their arguments name. They define no
parts."""

_TRAINING = "hydrant.training"

_TRACKERS = ("hydrant.trackers",)
"""Trackers extend a class of this package. They send values of the config to a receiver, which a config file may choose
nowhere else."""
LIBRARIES = ("torch.nn", "torch.optim", "torchvision.models", "torchvision.ops", "torchvision.transforms",
             "timm.layers", "timm.loss", "timm.models", "timm.optim", "torchmetrics", "torchao.optim")  # fmt: skip
"""The packages whose modules, metrics, optimizers and schedulers are allowed, because these classes never import or
call an object by a name that they get as an argument. Functions are not allowed, except torchvision's model builders:
other functions of these packages load files and call objects by name. `check_loads_nothing` refuses arguments."""

_ALWAYS = ("torch._dynamo", "torch.utils.flop_counter")  # every run imports these, and that is slow


def exporting_packages() -> list[str]:
    """Return the packages in which only what they export is a part: also those of the entry points `hydrant.parts`."""
    return [_TRAINING, *named_packages("hydrant.parts")]


def check_targets(config: Mapping[str, Any]) -> None:
    """Refuse targets that are not allowed or do not exist.

    Raises:
        ConfigError: Names the key.
    """
    trusted: Sequence[str] = config["allow_targets"]
    nodes = list(target_nodes(config, ""))
    for key, node in nodes:  # check every path before the first import
        path = node["_target_"]
        if not lies_under(path, trusted) and (not lies_under(path, _known_packages()) or "._" in path):
            raise _not_allowed(key, path)
    project = _project_of(node["_target_"] for _, node in nodes)
    for key, node in nodes:
        project.check_origin(node["_target_"], f"{key}._target_")
    for key, node in nodes:
        path = node["_target_"]
        is_trusted = lies_under(path, trusted)
        with paused_gc():
            target = locate(path, f"{key}._target_")
        if not is_trusted and not _is_part(target):
            raise _not_allowed(key, path)
        project.check_definition(path, target, f"{key}._target_")
        bases = getattr(target, "__mro__", (target,))
        if any(lies_under(base.__module__, _TRACKERS) for base in bases) and not re.fullmatch(
            r"tracker|trackers\.\w+", key
        ):
            raise ConfigError(f"{key}._target_", f"{shown(path)} is a tracker", remedy="choose it: tracker=")
        if lies_under(target.__module__, LIBRARIES) and not is_trusted:
            parameters = inspect.signature(target).parameters
            check_loads_nothing(key, {**positional_arguments(node, parameters), **node})


def _known_packages() -> list[str]:
    return ["hydrant", *LIBRARIES, *exporting_packages()]


def with_own_packages(config: Mapping[str, Any]) -> list[str]:
    """Return `allow_targets` with the packages that the targets of a config name, and that the user trusts elsewhere.

    These are the packages of the trusted working folder, and those of the variable HYDRANT_ALLOW_TARGETS.
    """
    trusted: list[str] = config["allow_targets"]
    paths = [path for _, path in targets_of(config) if not lies_under(path, trusted)]
    consented = [name for name in consented_packages() if any(lies_under(path, [name]) for path in paths)]
    of_project = _project_of(paths).named_by(path for path in paths if not lies_under(path, consented))
    return [*trusted, *consented, *of_project]


def _project_of(paths: Iterable[object]) -> Project:
    """Return the trusted project in the working folder; no project if these targets need none."""
    known = _known_packages()
    return NO_PROJECT if all(lies_under(str(path), known) for path in paths) else working_project()


def lies_under(path: object, packages: Sequence[str]) -> bool:
    """Whether a dotted path is one of these packages or lies in one."""
    return isinstance(path, str) and any(path == p or path.startswith(f"{p}.") for p in packages)


def _is_part(target: Any) -> bool:
    """Whether a target is a part, judged by the module that defines it: `torch.nn.modules.os.system` is not."""
    home = getattr(target, "__module__", None)  # a builtin has none
    name = getattr(target, "__qualname__", ".")
    if lies_under(home, _OPEN_PACKAGES):
        return "." not in name and not lies_under(home, _HELPERS)  # a method is not a part
    packages = [package for package in exporting_packages() if lies_under(home, (package,))]
    if any(getattr(importlib.import_module(package), name, None) is target for package in packages):
        return True
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
    is_here = could_be_trusted(str(target).partition(".")[0])
    trust_it = ". If this folder is your project, trust it once: hydrant trust" * is_here
    return ConfigError(
        f"{key}._target_",
        f"{shown(target)} is not allowed: a _target_ must be a part of hydrant, a module, metric, optimizer or "
        f"scheduler of {', '.join(LIBRARIES)}, or lie in a package of allow_targets",
        remedy=f"If you trust it, add its package: 'allow_targets=[my_package]'{trust_it}",
    )


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

    Also import the slow modules that every run needs. Another process may have checked the config.
    """
    for key, target in targets_of(config):
        locate(target, key)
    with paused_gc():
        for name in _ALWAYS:
            importlib.import_module(name)


def locate(path: str, key: str) -> Any:
    """Import and return the callable that a dotted path names.

    Raises:
        ConfigError: It does not exist, cannot be imported or is not callable. Suggests the nearest name.
    """
    head, *rest = path.split(".")
    target = _import(head, key)
    if target is None:
        extra = extra_of(head)
        remedy = f"install it: {install_command(extra)}" if extra else "is it installed, or in this folder?"
        raise ConfigError(key, f"no module {head!r}", remedy=remedy)
    for depth, part in enumerate(rest, start=1):
        name, owner = ".".join((head, *rest[: depth - 1])), target
        target = getattr(owner, part, None)
        if target is None and isinstance(owner, types.ModuleType):
            target = _import(f"{name}.{part}", key)
        if target is None:
            close = nearest(part, dir(owner))
            remedy = f"did you mean {' or '.join(map(repr, close))}?" if close else "is it spelt right?"
            raise ConfigError(key, f"{name} has no {part!r}", remedy=remedy)
    if not callable(target):
        raise ConfigError(key, f"{path} is a {type(target).__name__}, not a class or a function")
    return target


def _import(name: str, key: str) -> Any:
    """Import and return the module `name`; None if it does not exist."""
    try:
        return importlib.import_module(name)
    except Exception as error:  # the import of a user's module may raise anything
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            return None
        raise ConfigError(key, f"{name} cannot be imported: {typed_line(error)}") from error


def target_nodes(value: Any, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield (key, node) of every node with a `_target_` in `value`, the config's value at `key`."""
    if isinstance(value, Mapping) and "_target_" in value:
        yield key, value
    for inner_key, inner in children(value, key):
        yield from target_nodes(inner, inner_key)


def positional_arguments(
    node: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> dict[str, Any]:
    """Return a node's `_args_` by the names of the parameters that take them.

    torchvision's model builders also take keyword-only parameters by position.
    """
    named = takewhile(lambda p: p.kind is not inspect.Parameter.VAR_POSITIONAL, parameters.values())
    arguments = node.get("_args_")
    return dict(zip((p.name for p in named), arguments if isinstance(arguments, list) else (), strict=False))
