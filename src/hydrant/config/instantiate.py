"""Targets of a config: check their arguments, build them, and turn what they raise into errors that name the key."""

import copy
import inspect
import json
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any, Literal, cast

from hydrant.clock import converted
from hydrant.config.groups import own_words
from hydrant.errors import ConfigError, HydrantError, first_line, is_in_user_code, quoted, suggestion, traced
from hydrant.files.plain_values import check_value, declared_by, hints_of, leaves, with_floats
from hydrant.safety.targets import locate, positional_arguments, target_nodes

_Convert = Literal["none", "partial", "object", "all"]
HYDRA_KEYS = dict[str, Any](_target_=str, _partial_=bool, _recursive_=bool, _args_=list, _convert_=_Convert)
"""The types of the keys of a node that are no arguments. Whatever `_convert_` says, lists and mappings are plain."""


def check_signatures(config: Mapping[str, Any]) -> None:
    """Refuse arguments that the targets of a config do not take, or take with another type; write floats in tuples.

    Raises:
        ConfigError: Names the key.
    """
    for key, node in target_nodes(config, ""):
        check_arguments(key, node)


def check_arguments(key: str, node: Mapping[Any, Any]) -> None:
    """Refuse arguments that a node's target does not take, or takes with another type; write floats in tuples.

    Args:
        key, node: the node, whose own keys may also be numbers, and where it is.

    Raises:
        ConfigError: Names the key.
    """
    target = locate(node["_target_"], f"{key}._target_")
    try:
        parameters = inspect.signature(target).parameters
    except ValueError:  # a builtin without a signature
        return
    _check_names(key, node, parameters)
    hints = {**type_hints_of(target), **HYDRA_KEYS}
    # Those of a scheduler may be durations, for which 1 is checked.
    plain = converted(node, lambda _: 1) if awaits_optimizer(target, node) else node
    named = [(f"{key}.{name}", name, value) for name, value in plain.items()]
    placed = enumerate(positional_arguments(node, parameters).items())
    for place_of_value, name, value in [*named, *((f"{key}._args_.{n}", *item) for n, item in placed)]:
        if name in hints:
            check_value(place_of_value, hints[name], value)
    if plain is node:
        names = node.keys() & hints.keys()
        cast("dict[str, Any]", node).update({name: with_floats(hints[name], node[name]) for name in names})


def _check_names(key: str, node: Mapping[Any, Any], parameters: Mapping[str, inspect.Parameter]) -> None:
    """Refuse arguments that a target with these parameters does not have, and a node that lacks one."""
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name, value in node.items():
        if not isinstance(name, str) or not (takes_any or name in parameters or name in HYDRA_KEYS):
            words = own_words(f"{key}.{name}", str(value))
            remedy = words or suggestion(str(name), parameters, "Arguments")
            raise ConfigError(f"{key}.{name}", f"{node['_target_']} has no argument {name!r}", remedy=remedy)
    for name, p in () if node.get("_partial_") or "_args_" in node else parameters.items():
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and name not in node:
            message, remedy = f"{node['_target_']} needs a value", f"give +{key}.{name}=<value>"
            remedy += f", or +{key}._partial_=true if the run calls it" * key.endswith("loss")
            raise ConfigError(f"{key}.{name}", message, remedy=remedy)


def awaits_optimizer(target: Any, node: Mapping[str, Any]) -> bool:
    """Whether a target is a scheduler with a `step` method, or a function that returns one."""
    is_torch = inspect.isclass(target) and any(base.__name__ == "LRScheduler" for base in target.__mro__)
    by_name = "optimizer" in inspect.signature(target).parameters and "optimizer" not in node
    return is_torch or hasattr(target, "get_updated_values") or by_name


def type_hints_of(target: Any) -> Mapping[str, Any]:
    """Return the type hints of the arguments of a class or function; none if type checkers alone can resolve them."""
    try:
        return hints_of(target.__init__ if inspect.isclass(target) else target)
    except (NameError, TypeError, AttributeError):  # a hint uses names that exist for type checkers only
        return {}


def instantiate(config: Mapping[str, Any], key: str, *args: Any) -> Any:
    """Build the part that `config[key]` describes; with `args`, call a `_partial_` part with them.

    Raises:
        ConfigError: the part rejects one of its arguments; the error names its config key.
    """
    with as_config_error(key, config[key]):
        part = instantiate_node(config[key])
        return part(*args) if args else part


def instantiate_node(node: Mapping[str, Any]) -> Any:
    """Build what a node with a `_target_` describes, as Hydra does. The target's exceptions pass through unchanged.

    Lists and mappings are plain, and no other call gets the same ones.
    """
    build = _built if node.get("_recursive_", True) else copy.deepcopy
    arguments = {name: build(value) for name, value in node.items() if name not in HYDRA_KEYS}
    make = partial(locate(node["_target_"], "_target_"), *build(node.get("_args_", [])), **arguments)
    return make if node.get("_partial_") else make()


def _built(value: Any) -> Any:
    """Return a value with the objects that its nodes describe."""
    if isinstance(value, Mapping):
        is_part = "_target_" in value
        return instantiate_node(value) if is_part else {name: _built(item) for name, item in value.items()}
    return [_built(item) for item in value] if isinstance(value, list) else value


_ARGUMENT_ERRORS = (TypeError, ValueError, RuntimeError, AssertionError, LookupError, AttributeError,
                    ArithmeticError, OSError)  # fmt: skip
"""The errors by which third-party code rejects arguments. Errors of other types are shown with their type and line."""

_BUGS = (TypeError, LookupError, AttributeError, ArithmeticError)
"""Errors that user code seldom raises on purpose."""


@contextmanager
def as_config_error(key: str, node: Mapping[str, Any]) -> Generator[None]:
    """Re-raise an exception of the part at `key`, whose config is `node`, as a ConfigError. Also a decorator.

    Raises:
        HydrantError: the part raised it. Another error of the part becomes a ConfigError with its message.
    """
    try:
        yield
    except HydrantError:
        raise
    except Exception as error:  # a user's part may raise anything
        root: BaseException = error
        while root.__cause__ is not None and not isinstance(root, HydrantError):
            root = root.__cause__
        if isinstance(root, HydrantError):
            raise root from error
        text = first_line(root)
        is_bug = isinstance(root, _BUGS) and is_in_user_code(root)
        if is_bug or not isinstance(root, _ARGUMENT_ERRORS):
            text = traced(root)
        rejected = rejected_key(key, node, text)
        remedy = f"give {quoted(rejected)} another value" if rejected != key else ""
        raise ConfigError(rejected, f"{node['_target_']} refuses it: {text}", remedy=remedy) from error


def rejected_key(key: str, node: Mapping[str, Any], message: str) -> str:
    """Return the config key of the argument that `message` rejects.

    It is the argument that the message names; else the only one whose value it ends with; else `key`.

    >>> rejected_key("optimizer", {"lr": -1, "eps": 1e-8}, "Invalid learning rate: -1")
    'optimizer.lr'
    """
    arguments = {name: value for name, value in node.items() if not name.startswith("_")}
    words, value = re.findall(r"\w+", message), message.rpartition(":")[2].strip().rstrip(".")
    named = [name for name in arguments if name in words]
    with_value = [n for n, item in arguments.items() if value in {str(leaf) for _, leaf in leaves(item)}]
    matches = named if len(named) == 1 else with_value
    return f"{key}.{matches[0]}" if len(matches) == 1 else key


@lru_cache  # for the jobs of a sweep
def declared_by_node(node: str) -> Mapping[str, Any]:
    """Return the numbers that the data set of a checked node has as attributes. The node is written as JSON."""
    return declared_by(instantiate_node(json.loads(node)))
