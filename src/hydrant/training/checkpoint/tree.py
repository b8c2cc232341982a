"""Split a nested state into its tensors by path and the rest as JSON, so that no pickle is needed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from hydrant.errors import CheckpointError

_DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}


def split(state: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """Return the state in JSON's types, and add its tensors to `tensors` by their path.

    >>> split({"betas": (0.9, 0.99), "state": {0: None}}, {})
    {'betas': {'$tuple': [0.9, 0.99]}, 'state': {'$items': [[0, None]]}}

    Raises:
        CheckpointError: a value is neither a plain type, a dtype nor a tensor.
    """
    inner = f"{path}." if path else ""
    match state:
        case Tensor():
            key = path if path not in tensors else f"{path}#{len(tensors)}"
            tensors[key] = state
            return {"$tensor": key}
        case None | bool() | int() | float() | str():
            return state
        case torch.dtype():  # param groups of some optimizers hold the dtype of their state
            return {"$dtype": str(state).removeprefix("torch.")}
        case list():
            return [split(item, tensors, f"{inner}{n}") for n, item in enumerate(state)]
        case tuple():
            return {"$tuple": [split(item, tensors, f"{inner}{n}") for n, item in enumerate(state)]}
        case Mapping():
            items = {key: split(item, tensors, f"{inner}{key}") for key, item in state.items()}
            if all(isinstance(key, str) and not key.startswith("$") for key in items):
                return items
            return {"$items": [[split(key, tensors, inner), item] for key, item in items.items()]}
        case _:
            raise CheckpointError(f"{path} cannot be saved: {type(state).__name__} is not a plain type")


def join(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the state that `split` took apart.

    >>> join({'betas': {'$tuple': [0.9, 0.99]}, 'state': {'$items': [[0, None]]}}, {})
    {'betas': (0.9, 0.99), 'state': {0: None}}
    """
    match plain:
        case {"$tensor": key}:
            return tensors[key]
        case {"$dtype": name}:
            return _DTYPES[name]
        case {"$tuple": items}:
            return tuple(join(item, tensors) for item in items)
        case {"$items": items}:
            return {join(key, tensors): join(item, tensors) for key, item in items}
        case dict():
            return {key: join(item, tensors) for key, item in plain.items()}
        case list():
            return [join(item, tensors) for item in plain]
        case _:
            return plain


def tensors_in(plain: Any) -> Iterator[str]:
    """Yield the paths of the tensors in a state that `split` returned."""
    match plain:
        case {"$tensor": str(key)}:
            yield key
        case dict():
            for item in plain.values():
                yield from tensors_in(item)
        case list():
            for item in plain:
                yield from tensors_in(item)
        case _:
            return
