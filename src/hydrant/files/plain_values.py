"""Plain values, as JSON, YAML and configs have them: what they contain, and whether they fit a Python type hint."""

import inspect
import math
import operator
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, cast

from annotated_types import Ge, Gt, Interval

from hydrant.errors import ConfigError, unknown_name

_PLAIN_TYPES: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "true or false"),
    str: ("a string", "strings"),
    type(None): ("null", "null"),
    Any: ("any value", "any values"),
}
"""The names of plain types in messages, in singular and plural."""

Positive = Annotated[float, Gt(0)]
PositiveInt = Annotated[int, Ge(1)]
NotNegative = Annotated[float, Ge(0)]
NotNegativeInt = Annotated[int, Ge(0)]
Ratio = Annotated[float, Interval(ge=0, le=1)]
RatioBelowOne = Annotated[float, Interval(ge=0, lt=1)]
PositiveRatio = Annotated[float, Interval(gt=0, le=1)]
AtLeastOne = Annotated[float, Ge(1)]
BetweenZeroAndOne = Annotated[float, Interval(gt=0, lt=1)]
AboveOne = Annotated[float, Gt(1)]
"""Ranges of arguments. What a config builds is checked against such hints, a user's own part too."""

_LIMITS = {"gt": operator.gt, "ge": operator.ge, "lt": operator.lt, "le": operator.le}

_UNIONS = (typing.Union, types.UnionType)


@lru_cache(1000)  # the jobs of a sweep have most classes in common
def hints_of(owner: Any) -> Mapping[str, Any]:
    """Return the type hints of a function or a dataclass, for as many jobs as there are."""
    return typing.get_type_hints(owner, include_extras=True)


def children(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of the entries of a mapping or a list at `key`, and nothing for other values."""
    numbered = enumerate(value if isinstance(value, list) else ())
    for name, item in value.items() if isinstance(value, Mapping) else numbered:
        yield f"{key}.{name}" if key else str(name), item


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of every value at or below `key` that is neither a mapping nor a list."""
    if not isinstance(value, (Mapping, list)):
        yield key, value
    for inner_key, inner in children(value, key):
        yield from leaves(inner, inner_key)


def check_value(key: str, hint: Any, value: Any) -> None:
    """Refuse a value that a hint does not accept.

    Raises:
        ConfigError: Says what is needed.
    """
    if accepts(hint, value):
        return
    choices = [choice for choice in _choices(hint) if isinstance(choice, str)]
    if choices and isinstance(value, str) and not accepts(hint, 1):
        raise unknown_name(key, "value", value, choices)
    remedy = ""
    if accepts(hint, "") and isinstance(value, int | float) and not isinstance(value, bool):
        remedy = f"""for a string write "{key}='{value}'\""""
    if key.endswith(("loss.weight", "loss.pos_weight")):  # a tensor, which no config can give
        remedy = "weights of classes are task.class_weights=[...] of task=classification, for labels too"
    if value is None and key in _TAKEN_FROM_DATA:
        remedy = f"give {_TAKEN_FROM_DATA[key]}, which it takes; or model=none, if you pass a model"
    needs = describe(hint) + (", and finite" if value == math.inf else "")
    raise ConfigError(key, needs=needs, got=value, remedy=remedy)


_TAKEN_FROM_DATA = {
    "model.input_shape": "data.input_shape=[...]",
    "model.num_classes": "data.num_classes=<number>",
}
"""Keys that the options of models take from the data, where data of one's own may lack them."""


def accepts(hint: Any, value: Any) -> bool:
    """Whether a config value fits a type hint. Hints that cannot be checked accept everything.

    >>> accepts(float | None, 1), accepts(tuple[float, float], [0.9, 0.99]), accepts(float, "high")
    (True, True, False)
    """
    if isinstance(value, Mapping) and "_target_" in value:
        return True  # instantiate replaces it by an object
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin is Annotated:
        return accepts(arguments[0], value) and _is_within(limits_of(hint), value)
    if origin in _UNIONS:
        return any(accepts(argument, value) for argument in arguments)
    if origin is typing.Literal:
        return any(value == choice and type(value) is type(choice) for choice in arguments)
    if origin in (tuple, list, Sequence):
        return isinstance(value, (list, tuple)) and _accepts_items(origin, arguments, value)
    if origin in (dict, Mapping):
        items = value.values() if isinstance(value, Mapping) else ()
        return isinstance(value, Mapping) and all(accepts(arguments[1], i) for i in items if arguments)
    if hint in (int, float):
        return isinstance(value, int | hint) and not isinstance(value, bool)
    if hint in (bool, str, type(None)):
        return isinstance(value, hint)
    return not is_torch_class(hint)  # only a _target_ can create its objects


def limits_of(hint: Any) -> dict[str, float]:
    """Return the limits of an annotated hint, by the words of annotated-types.

    >>> limits_of(Ratio), limits_of(float)
    ({'ge': 0, 'le': 1}, {})
    """
    marks = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
    limits = {name: getattr(mark, name, None) for mark in marks for name in _LIMITS if hasattr(mark, name)}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _is_within(limits: Mapping[str, float], value: Any) -> bool:
    if not limits or not isinstance(value, int | float):
        return True
    return math.isfinite(value) and all(_LIMITS[name](value, limit) for name, limit in limits.items())


def _range_of(limits: Mapping[str, float], number: type, *, several: bool) -> str:
    numbers = describe(number, several=several)
    texts = {name: f"{limit:.12g}" for name, limit in limits.items()}
    low = texts.get("ge") or (f"above {texts['gt']}" if "gt" in texts else "")
    high = f"below {texts['lt']}" if "lt" in texts else f"at most {texts['le']}" if "le" in texts else ""
    if "ge" in limits and not high:
        return f"{numbers} of {low} or more"
    if "ge" in limits:
        return f"{numbers} from {low} to {high.removeprefix('at most ')}"
    return f"{numbers} {' and '.join(filter(None, [low, high]))}".rstrip()


def with_floats(hint: Any, value: Any) -> Any:
    """Return a value that fits a hint, with floats in a tuple of floats: torch refuses betas of (0, 0.99).

    A number alone stays as the user wrote it, for messages show it.

    >>> with_floats(tuple[float, float] | None, [0, 0.99]), with_floats(tuple[int, int], [3, 3]), with_floats(float, 1)
    ([0.0, 0.99], [3, 3], 1)
    """
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if origin in _UNIONS:
        return with_floats(next((a for a in arguments if accepts(a, value)), None), value)
    has_floats = any(float in (a, *typing.get_args(a)) for a in arguments)
    if origin is tuple and isinstance(value, list) and has_floats:
        return [float(item) if type(item) is int else item for item in value]
    return value


def _accepts_items(origin: Any, arguments: tuple[Any, ...], items: Sequence[Any]) -> bool:
    if origin is tuple and arguments and Ellipsis not in arguments:
        return len(items) == len(arguments) and all(map(accepts, arguments, items))
    return not arguments or all(accepts(arguments[0], item) for item in items)


def describe(hint: Any, *, several: bool = False) -> str:
    """Describe what a hint accepts.

    >>> describe(float | None), describe(tuple[float, float]), describe(list[int])
    ('a number or null', 'a list of 2 numbers', 'a list of whole numbers')
    >>> describe(Positive | None), describe(NotNegative), describe(RatioBelowOne)
    ('a number above 0 or null', 'a number of 0 or more', 'a number from 0 to below 1')
    >>> describe(tuple[Ratio, Ratio]), describe(list[NotNegative])
    ('a list of 2 numbers from 0 to 1', 'a list of numbers of 0 or more')
    """
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if hint in _PLAIN_TYPES:
        return _PLAIN_TYPES[hint][several]
    if origin is Annotated:
        return _range_of(limits_of(hint), arguments[0], several=several)
    if origin in _UNIONS:
        plain = [a for a in arguments if not is_torch_class(a)] or list(arguments)
        return " or ".join(dict.fromkeys(describe(a, several=several) for a in plain))
    if origin is typing.Literal:
        return " or ".join(map(str, arguments))
    if origin in (tuple, list, Sequence):
        fixed = origin is tuple and bool(arguments) and Ellipsis not in arguments
        count = f"{len(arguments)} " if fixed else ""
        items = f" of {count}{describe(arguments[0], several=True)}" if arguments else ""
        return f"{'lists' if several else 'a list'}{items}"
    if origin in (dict, Mapping):
        return "a mapping of keys to values"
    if inspect.isclass(hint):
        return f"a {hint.__name__}, created by a _target_"
    return str(hint).replace("typing.", "")


def _choices(hint: Any) -> tuple[Any, ...]:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return arguments
    return tuple(c for a in arguments for c in _choices(a)) if typing.get_origin(hint) in _UNIONS else ()


def is_torch_class(hint: Any) -> bool:
    """Whether a hint is a class of torch, whose objects only a `_target_` can create."""
    return inspect.isclass(hint) and hint.__module__.startswith("torch")


def declared_by(data_set: Any) -> dict[str, Any]:
    """Return the attributes `num_classes` and `input_shape` of a data set; None: it has none.

    In place of `num_classes`, it may have `vocab_size`, or the list `classes`, as torchvision's data sets do.
    """
    classes, shape = getattr(data_set, "classes", None), getattr(data_set, "input_shape", None)
    counts = [getattr(data_set, name, None) for name in ("num_classes", "vocab_size")]
    counts += [len(cast("list[Any]", classes))] if isinstance(classes, (list, tuple)) else []
    count = next((count for count in counts if isinstance(count, int)), None)
    return {"num_classes": count, "input_shape": [*shape] if isinstance(shape, (list, tuple)) else None}
