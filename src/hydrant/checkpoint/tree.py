"""A nested state as two things that need no pickle: its tensors by path, and the rest as JSON can say it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from hydrant.errors import CheckpointError


def split(state: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """The state in JSON's types; its tensors go into `tensors`, by their path.

    >>> split({"betas": (0.9, 0.99), "state": {0: None}}, {})
    {'betas': {'$tuple': [0.9, 0.99]}, 'state': {'$items': [[0, None]]}}

    Raises:
        CheckpointError: it holds something that is neither.
    """
    inner = f"{path}." if path else ""
    match state:
        case Tensor():
            key = path if path not in tensors else f"{path}#{len(tensors)}"
            tensors[key] = state
            return {"$tensor": key}
        case None | bool() | int() | float() | str():
            return state
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
            raise CheckpointError(f"{path} cannot be saved: it is a {type(state).__name__}, no plain type")


def join(plain: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The state that `split` took apart.

    >>> join({'betas': {'$tuple': [0.9, 0.99]}, 'state': {'$items': [[0, None]]}}, {})
    {'betas': (0.9, 0.99), 'state': {0: None}}
    """
    match plain:
        case {"$tensor": key}:
            return tensors[key]
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
    """The paths of the tensors that a state in JSON's types names."""
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
