"""What a config may call (`_target_`), and whether it takes the arguments it is given."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import sys
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from hydrant.config.hints import check_value
from hydrant.errors import ConfigError, nearest, shown, suggestion, typed_line
from hydrant.importing import importing

_OWN = ("averaging", "compilation", "data", "fsdp", "making.weights", "mixing", "models", "optimizers", "parallel",
        "precision", "profiling", "schedules", "tasks", "trackers.base", "trackers.tensorboard",
        "trackers.wandb")  # fmt: skip

ALLOWED = ("torch.nn", "torch.optim", "torchvision.models", "torchvision.ops", "torchvision.transforms",
           "timm.layers", "timm.loss", "timm.models", "timm.optim", "torchmetrics", "torchao.optim")  # fmt: skip
"""Where parts of others lie: their classes of modules, metrics, optimizers and schedulers, which call no name that
they are given. Functions are none, but for torchvision's models: those of a package's own use load files and call what
they are told."""

_ALWAYS = ("torch._dynamo", "torch.utils.flop_counter")  # imported by every run, and slow

CONSENT = "HYDRANT_ALLOW_TARGETS"
"""The environment variable that names packages, separated by commas, which config files may ask for."""

_HYDRA: Mapping[str, Any] = {"_target_": str, "_partial_": bool, "_recursive_": bool, "_args_": list,
                            "_convert_": Literal["none", "partial", "object", "all"]}  # fmt: skip
"""What Hydra itself reads of a node, and of what type."""


def check_targets(config: Mapping[str, Any]) -> None:
    """Refuse targets that are not allowed, do not exist or have no such argument.

    Raises:
        ConfigError: naming the key.
    """
    trusted: Sequence[str] = config["allow_targets"]
    found = list(nodes(config, ""))
    for key, node in found:  # all, before anything is imported
        path = node["_target_"]
        if not lies_under(path, trusted) and (not lies_under(path, ("hydrant", *ALLOWED)) or "._" in path):
            raise _not_allowed(key, path)
    targets = list[Any]()
    for key, node in found:
        path = node["_target_"]
        is_trusted = lies_under(path, trusted)
        # What a user's module makes when it is imported is not ours to keep.
        with contextlib.nullcontext() if is_trusted else importing():
            target = locate(path, f"{key}._target_")
        if not is_trusted and not _is_part(target):
            raise _not_allowed(key, path)
        targets.append(target)
    for (key, node), target in zip(found, targets, strict=True):
        _bind(key, node, target)


def check_consent(packages: object, words: Iterable[str]) -> None:
    """Refuse packages of `allow_targets` that only a config file names; `words` are the command line's overrides.

    Raises:
        ConfigError: whoever runs the config has to name them: there, or in the variable HYDRANT_ALLOW_TARGETS.
    """
    if not packages or "allow_targets" in {word.partition("=")[0].lstrip("+") for word in words}:
        return
    known = os.environ.get(CONSENT, "").split(",")
    asked = [str(package) for package in packages] if isinstance(packages, list) else [str(packages)]
    if unknown := [package for package in asked if package not in known]:
        told, names = f"a config file asks to run code of {', '.join(map(shown, unknown))}", ",".join(asked)
        remedy = f"say so on the command line, 'allow_targets=[{names}]', or by {CONSENT}={names}"
        raise ConfigError("allow_targets", f"{told}. If you trust it, {remedy}")


def lies_under(path: object, packages: Sequence[str]) -> bool:
    """Whether a dotted path is one of these packages or lies in one."""
    return isinstance(path, str) and any(path == p or path.startswith(f"{p}.") for p in packages)


def _is_part(target: Any) -> bool:
    """Whether a target was written to be a part, where it is defined: `torch.nn.modules.os.system` was not."""
    home = getattr(target, "__module__", None)  # a builtin has none
    if lies_under(home, [f"hydrant.{name}" for name in _OWN]):
        return "." not in getattr(target, "__qualname__", ".")  # no method
    from torch import nn, optim

    kinds = (nn.Module, optim.Optimizer, optim.lr_scheduler.LRScheduler)
    if inspect.isclass(target):
        return lies_under(home, ALLOWED) and issubclass(target, kinds)
    return lies_under(home, ["torchvision.models"]) and _builds_a_model(target)


def _builds_a_model(target: Any) -> bool:
    """Whether torchvision lists a function under its name: `resnet18` and the like."""
    from torchvision.models import get_model_builder, list_models

    name = getattr(target, "__name__", "")
    return name in list_models() and get_model_builder(name) is target


def _not_allowed(key: str, target: object) -> ConfigError:
    return ConfigError(
        f"{key}._target_",
        f"{shown(target)} is not allowed: what is called is a part of hydrant, a module, metric, optimizer or "
        f"scheduler of {', '.join(ALLOWED)}, or lies in allow_targets. If you trust it, add its package: "
        "'allow_targets=[my_package]'",
    )


def check_arguments(key: str, node: Mapping[str, Any]) -> None:
    """Refuse arguments that a node's target does not take, or not of that type; ConfigError names the key."""
    _bind(key, node, locate(node["_target_"], key))


def targets_of(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, dotted path) of every target in a config."""
    for key, node in nodes(config, ""):
        yield f"{key}._target_", node["_target_"]


def imports_of(configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """What runs of checked configs import late: all the same, their parts' modules of ours, and `PRELOAD` of these."""
    found = set(_ALWAYS)
    for key, target in (pair for config in configs for pair in targets_of(config)):
        module = sys.modules[locate(target, key).__module__]
        if module.__name__.startswith("hydrant."):
            found |= {module.__name__, *getattr(module, "PRELOAD", ())}
    return sorted(found)


def import_targets(config: Mapping[str, Any]) -> None:
    """Import what a config names, so that what it registers, such as a backend of torch.compile, is there.

    And what every run imports, whatever its parts are.
    """
    for key, target in targets_of(config):
        locate(target, key)
    with importing():
        for name in _ALWAYS:
            importlib.import_module(name)


def locate(path: str, key: str) -> Any:
    """The object that a dotted path names.

    Raises:
        ConfigError: there is none, it cannot be imported or not be called; suggests the nearest name.
    """
    head, *rest = path.split(".")
    found = _import(head, path, key)
    if found is None:
        raise ConfigError(key, f"no module {head!r}; is it installed, or does it lie in this folder?")
    for depth, part in enumerate(rest, start=1):
        name, owner = ".".join((head, *rest[: depth - 1])), found
        found = getattr(owner, part, None)
        if found is None and isinstance(owner, types.ModuleType):
            found = _import(f"{name}.{part}", path, key)
        if found is None:
            close = nearest(part, dir(owner))
            hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else "; is it spelt right?"
            raise ConfigError(key, f"{name} has no {part!r}{hint}")
    if not callable(found):
        raise ConfigError(key, f"{path} is a {type(found).__name__}; needed is a class or a function")
    return found


def _import(name: str, path: str, key: str) -> Any:
    """The module `name`; None where there is none."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise ConfigError(key, f"{path} needs {error.name!r}, which is not installed") from error
    except Exception as error:  # a user's module may raise anything when it is imported
        raise ConfigError(key, f"{name} cannot be imported: {typed_line(error)}") from error


def nodes(value: Any, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(key, node) of every node with a target in a value, which lies at `key`."""
    if isinstance(value, Mapping):
        if "_target_" in value:
            yield key, value
        for name, item in value.items():
            yield from nodes(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from nodes(item, f"{key}.{position}")


def _bind(key: str, node: Mapping[str, Any], target: Any) -> None:
    try:
        parameters = inspect.signature(target).parameters
    except ValueError:  # a builtin that does not tell
        return
    hints = _hints(target)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for name, value in node.items():
        if name in _HYDRA:
            check_value(f"{key}.{name}", _HYDRA[name], value)
            continue
        if name not in parameters and not takes_any:
            hint = suggestion(name, parameters, "Arguments")
            raise ConfigError(f"{key}.{name}", f"{node['_target_']} has no argument {name!r}{hint}")
        if name in hints:
            check_value(f"{key}.{name}", hints[name], value)
    if not node.get("_partial_", False):
        _check_complete(key, node, parameters)


def _check_complete(key: str, node: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> None:
    optional = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for name, parameter in parameters.items():
        needed = parameter.default is inspect.Parameter.empty and parameter.kind not in optional
        if needed and name not in node and "_args_" not in node:
            raise ConfigError(
                f"{key}.{name}", f"{node['_target_']} needs a value; give +{key}.{name}=<value>"
            )


def _hints(target: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except (NameError, TypeError, AttributeError):  # names that exist for type checkers only
        return {}
