"""Check whether the targets of a config take its arguments."""

import inspect
from collections.abc import Mapping
from typing import Any, Literal

from hydrant.checks import suggestion
from hydrant.clock import Duration, converted
from hydrant.config.foreign_words import own_words
from hydrant.config.groups import conf_dir
from hydrant.errors import ConfigError
from hydrant.files.plain_values import check_value, hints_of, with_floats
from hydrant.safety.targets import LIBRARIES, lies_under, locate, positional_arguments, target_nodes

_HYDRA_KEYS: Mapping[str, Any] = {"_target_": str, "_partial_": bool, "_recursive_": bool, "_args_": list,
                                  "_convert_": Literal["none", "partial", "object", "all"]}  # fmt: skip
"""The keys of a node that Hydra reads, and their types."""


def check_signatures(config: Mapping[str, Any]) -> None:
    """Refuse arguments that the targets of a config do not take, or take with another type; write floats in tuples.

    Raises:
        ConfigError: Names the key.
    """
    for key, node in target_nodes(config, ""):
        _check_signature(key, node, locate(node["_target_"], f"{key}._target_"))


def check_arguments(key: str, node: Mapping[str, Any]) -> None:
    """Refuse arguments that a node's target does not take, or takes with another type; write floats in tuples.

    Raises:
        ConfigError: Names the key.
    """
    _check_signature(key, node, locate(node["_target_"], key))


def takes(path: object, name: str) -> bool:
    """Whether a target takes an argument. A target that may not be imported before it is checked is taken to do so."""
    if not lies_under(path, ("hydrant", *LIBRARIES)) or "._" in str(path):
        return True
    try:
        parameters = inspect.signature(locate(str(path), "")).parameters
    except (ConfigError, ValueError):  # ValueError: a builtin without a signature
        return True
    return name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def _check_signature(key: str, node: Mapping[Any, Any], target: Any) -> None:
    """Check the arguments of a node, whose keys may also be numbers."""
    try:
        parameters = inspect.signature(target).parameters
    except ValueError:  # a builtin without a signature
        return
    hints = type_hints_of(target)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    checked = _of_stepped(key, node, parameters) if _awaits_optimizer(target, parameters, node) else node
    for name, value in checked.items():
        if name in _HYDRA_KEYS:
            check_value(f"{key}.{name}", _HYDRA_KEYS[name], value)
            continue
        if not isinstance(name, str) or (name not in parameters and not takes_any):
            words = own_words(f"{key}.{name}", str(value))
            remedy = words or suggestion(str(name), parameters, "Arguments")
            raise ConfigError(f"{key}.{name}", f"{node['_target_']} has no argument {name!r}", remedy=remedy)
        if name in hints:
            check_value(f"{key}.{name}", hints[name], value)
            if checked is node and isinstance(node, dict):
                node[name] = with_floats(hints[name], value)
    for index, (name, value) in enumerate(positional_arguments(node, parameters).items()):
        if name in hints:
            check_value(f"{key}._args_.{index}", hints[name], value)
    if not node.get("_partial_", False):
        _check_complete(key, node, parameters)


def _awaits_optimizer(target: Any, parameters: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    """Whether a target is a scheduler with a `step` method, or a function that returns one."""
    is_torch = inspect.isclass(target) and any(base.__name__ == "LRScheduler" for base in target.__mro__)
    by_name = "optimizer" in parameters and "optimizer" not in node
    return is_torch or hasattr(target, "get_updated_values") or by_name


def _of_stepped(key: str, node: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a scheduler with a `step` method gets, with 1 for every duration."""
    if "every" in node:
        Duration.parse(node["every"], f"{key}.every")
        if "every" in parameters:
            message = f"{node['_target_']} has an argument of this name, which the run uses"
            raise ConfigError(f"{key}.every", message, remedy="rename the argument")
    return converted({name: value for name, value in node.items() if name != "every"}, lambda _: 1)


def _check_complete(key: str, node: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]) -> None:
    optional = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for name, parameter in parameters.items():
        required = parameter.default is inspect.Parameter.empty and parameter.kind not in optional
        if required and name not in node and "_args_" not in node:
            remedy = f"give +{key}.{name}=<value>"
            option = str(node["_target_"]).rpartition(".")[2]
            if lies_under(node["_target_"], ["hydrant"]) and (conf_dir() / key / f"{option}.yaml").is_file():
                remedy += f", or begin the file of your option with `defaults: [{option}]`, which has all"
            raise ConfigError(f"{key}.{name}", f"{node['_target_']} needs a value", remedy=remedy)


def type_hints_of(target: Any) -> Mapping[str, Any]:
    """Return the type hints of the arguments of a class or function; none if type checkers alone can resolve them."""
    try:
        return hints_of(target.__init__ if inspect.isclass(target) else target)
    except (NameError, TypeError, AttributeError):  # a hint uses names that exist for type checkers only
        return {}
