"""What is known inside the classes of a model, by making it once more: the arguments of each, and attributes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from torch import nn

from hydrant.commands.eject.bundle import is_copied
from hydrant.commands.eject.couplings import CONSTRUCTOR
from hydrant.commands.eject.known import SOMETHING

_PLAIN = (type(None), bool, int, float, str)


def observe(make: Callable[[], nn.Module]) -> dict[str, Mapping[str, Any]]:
    """Return what is known in each class of a model whose source is copied, by the name of the class.

    Arguments and attributes are known that are plain values, and equal for all objects of the class. Of others it is
    known that they are not None.
    """
    kinds = {type(module) for module in make().modules() if is_copied(type(module).__module__)}
    calls: dict[type, list[Mapping[str, Any]]] = {kind: [] for kind in kinds}
    with ExitStack() as stack:
        for kind in kinds:
            if CONSTRUCTOR in vars(kind):
                made = _recording(kind, vars(kind)[CONSTRUCTOR], calls[kind])
                stack.enter_context(patch.object(kind, CONSTRUCTOR, made))
        modules = list(make().modules())
    known = dict[str, Mapping[str, Any]]()
    for kind in kinds:
        objects = [vars(module) for module in modules if type(module) is kind]
        attributes = [{**values, **values["_modules"], **values["_parameters"]} for values in objects]
        constant = {n: value for n, value in _equal(attributes).items() if not n.endswith("training")}
        known[kind.__name__] = {**_equal(calls[kind]), "self": SimpleNamespace(**constant)}
    return known


def _equal(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the entries that are plain and equal in all mappings, and SOMETHING for those that are never None."""
    if not mappings:
        return {}
    first, result = mappings[0], dict[str, Any]()
    for name in first:
        values = [mapping.get(name) for mapping in mappings]
        if all(
            isinstance(value, _PLAIN) and (type(value), value) == (type(values[0]), values[0])
            for value in values
        ):
            result[name] = values[0]
        elif all(value is not None for value in values):
            result[name] = SOMETHING
    return result


def _recording(kind: type, original: Any, calls: list[Mapping[str, Any]]) -> Any:
    """Return a constructor that records the arguments with which objects are made."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        if type(self) is kind:
            bound = signature.bind(self, *args, **kwargs)
            bound.apply_defaults()
            calls.append({name: value for name, value in bound.arguments.items() if name != "self"})
        original(self, *args, **kwargs)

    return make
