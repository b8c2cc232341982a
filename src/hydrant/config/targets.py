"""What a config may call (`_target_`), and whether it takes the arguments it is given."""

from __future__ import annotations

import importlib
import inspect
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydrant.errors import ConfigError, nearest

ALLOWED = ("hydrant", "torch", "torchvision", "timm", "torchmetrics", "torchao")


def check_targets(config: Mapping[str, Any]) -> None:
    """Refuse targets that are not allowed, do not exist or have no such argument.

    Raises:
        ConfigError: naming the key.
    """
    allowed = (*ALLOWED, *config["allow_targets"])
    nodes = list(_nodes(config, ""))
    for key, node in nodes:
        target = node["_target_"]
        if not isinstance(target, str) or not any(target == p or target.startswith(f"{p}.") for p in allowed):
            raise ConfigError(
                f"{key}._target_",
                f"{target!r} is not allowed: targets lie under {', '.join(allowed)}. "
                "If you trust it, add its package to allow_targets",
            )
    for key, node in nodes:
        _check_arguments(key, node, locate(node["_target_"], f"{key}._target_"))


def targets_of(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(key, dotted path) of every target in a config."""
    for key, node in _nodes(config, ""):
        yield f"{key}._target_", node["_target_"]


def locate(path: str, key: str) -> Any:
    """The object that a dotted path names.

    Raises:
        ConfigError: there is none; suggests the nearest name where the path goes wrong.
    """
    parts = path.split(".")
    found: Any = None
    for depth, part in enumerate(parts):
        name = ".".join(parts[: depth + 1])
        try:
            found = getattr(found, part) if depth else importlib.import_module(part)
            continue
        except (AttributeError, ModuleNotFoundError):
            if depth == 0:
                raise ConfigError(key, f"no module {part!r}: is it installed, or in this folder?") from None
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise ConfigError(key, f"{path} needs {error.name!r}, which is not installed") from error
            close = nearest(part, dir(found))
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            raise ConfigError(key, f"{'.'.join(parts[:depth])} has no {part!r}{hint}") from None
    if not callable(found):
        raise ConfigError(key, f"{path} is not callable")
    return found


def _nodes(value: Any, key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(value, Mapping):
        if "_target_" in value:
            yield key, value
        for name, item in value.items():
            yield from _nodes(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _nodes(item, f"{key}.{position}")


def _check_arguments(key: str, node: Mapping[str, Any], target: Any) -> None:
    try:
        parameters = inspect.signature(target).parameters
    except ValueError:  # a builtin that does not tell
        return
    hints = _hints(target)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for name, value in node.items():
        if name.startswith("_") and name.endswith("_"):
            continue
        if name not in parameters and not takes_any:
            close = nearest(name, parameters)
            hint = f"; did you mean {' or '.join(close)}?" if close else f"; it has {', '.join(parameters)}"
            raise ConfigError(f"{key}.{name}", f"{node['_target_']} has no argument {name!r}{hint}")
        if name in hints and not accepts(hints[name], value):
            raise ConfigError(f"{key}.{name}", f"{value!r} is no {_name_of(hints[name])}")
    if not node.get("_partial_", False):
        _check_complete(key, node, parameters)


def _check_complete(key: str, node: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> None:
    optional = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for name, parameter in parameters.items():
        needed = parameter.default is inspect.Parameter.empty and parameter.kind not in optional
        if needed and name not in node and "_args_" not in node:
            raise ConfigError(f"{key}.{name}", f"{node['_target_']} needs it; give +{key}.{name}=<value>")


def _hints(target: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(target.__init__ if inspect.isclass(target) else target)
    except (NameError, TypeError, AttributeError):  # names that exist for type checkers only
        return {}


def accepts(hint: Any, value: Any) -> bool:
    """Whether a config value can stand for an annotated argument; what cannot be told is accepted.

    >>> accepts(float | None, 1), accepts(tuple[float, float], [0.9, 0.99]), accepts(float, "high")
    (True, True, False)
    """
    if isinstance(value, Mapping) and "_target_" in value:
        return True  # an object by then
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(accepts(argument, value) for argument in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin in (tuple, list, Sequence) and isinstance(value, list):
        fixed = origin is tuple and Ellipsis not in arguments and bool(arguments)
        if fixed:
            return len(value) == len(arguments) and all(map(accepts, arguments, value))
        return not arguments or all(accepts(arguments[0], item) for item in value)
    if origin in (tuple, list, Sequence):
        return False
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint in (bool, str, type(None)):
        return isinstance(value, hint)
    return not (inspect.isclass(hint) and hint.__module__.startswith("torch")) or not isinstance(value, str)


def _name_of(hint: Any) -> str:
    arguments = [a for a in typing.get_args(hint) if getattr(a, "__module__", "") != "torch"]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(_name_of(a) for a in arguments)
    if hint is type(None):
        return "null"
    return hint.__name__ if inspect.isclass(hint) and not arguments else str(hint).replace("typing.", "")
