"""What a task or an optimizer keeps where a stack cannot give each lane its own: in a partial, a dict or a closure."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator, Sequence
from types import CellType, CodeType, FunctionType, MethodType, NoneType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hydrant.errors import log
from hydrant.training.stack.forward import plain_attributes
from hydrant.training.stack.reasons import CannotStack

_SCALARS = (NoneType, bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_PER_LANE = {"_parameters", "_buffers", "_modules", "training", "state", "param_groups", "defaults"}
"""Attributes of a module or an optimizer that every lane has itself, or that are the same at the start."""


class HiddenContents:
    """The content of what the parts of a task hide.

    Args:
        task: its modules, parameters and buffers are known, so the content of others does not include them.
    """

    def __init__(self, task: nn.Module) -> None:
        known = [*task.modules(), *task.parameters(), *task.buffers()]
        self._seen: dict[int, tuple[int, Any]] = {id(part): (n, part) for n, part in enumerate(known)}

    def of(self, owner: nn.Module | torch.optim.Optimizer) -> dict[str, Hashable]:
        """Return the hidden attributes of a module or an optimizer, as values that are equal if their content is.

        The plain numbers and strings of a module are not hidden.
        """
        left_out = {*_PER_LANE, *(plain_attributes(owner) if isinstance(owner, nn.Module) else ())}
        hidden = {name: value for name, value in vars(owner).items() if name not in left_out}
        # torch keeps hooks by a number that counts those of the process.
        hooks = {
            name: [*value.values()]
            for name, value in hidden.items()
            if "_hooks" in name and isinstance(value, dict)
        }
        return {name: self._content(value) for name, value in (hidden | hooks).items()}

    def _content(self, value: Any) -> Hashable:
        """Return a value that is equal for equal contents: a hash, and the classes and functions within."""
        digest, kept, todo = hashlib.sha256(), list[Hashable](), [value]
        while todo:  # no recursion, for which a chain of objects may be too long
            value = todo.pop()
            data: Any = b""
            if isinstance(value, type | CodeType):
                kept.append(value)
                token = "kept"
            elif isinstance(value, bytes):
                token, data = f"bytes {len(value)}", value
            elif isinstance(value, _SCALARS):
                text = repr(value)  # NaN is not equal to itself
                token = f"{type(value)} {len(text)} {text}"
            elif id(value) in self._seen:
                token = f"seen {self._seen[id(value)][0]}"
            else:
                self._seen[id(value)] = len(self._seen), value  # kept, so that no other object gets its id
                if isinstance(value, Tensor) and value.layout is torch.strided:
                    token = f"{value.dtype} {[*value.shape]}"
                    data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
                elif type(value) is np.ndarray and not value.dtype.hasobject:
                    token = f"{value.dtype} {value.shape}"
                    data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
                else:
                    parts = _parts(value)
                    kept.append(type(value))
                    token = f"parts {len(parts)}"
                    todo += reversed(parts)
            digest.update(f"{token};".encode())
            digest.update(data)
        return digest.hexdigest(), *kept


def check_hidden(tasks: Sequence[nn.Module]) -> None:
    """Check that tasks of the same classes hide no content that differs, as one that is drawn by the seed does.

    Raises:
        CannotStack: an attribute differs, and the lanes of a stack would share that of the first.
    """
    contents = [HiddenContents(task) for task in tasks]
    for modules in zip(*(task.modules() for task in tasks), strict=True):
        hidden = [content.of(module) for content, module in zip(contents, modules, strict=True)]
        for name, first in hidden[0].items():
            if any(other.get(name) != first for other in hidden):
                where = f"{type(modules[0]).__name__}.{name.lstrip('_')}"
                raise CannotStack(f"the content of {where} differs between the runs")


def _parts(value: Any) -> Sequence[Any]:
    """Return what an object consists of; nothing if it cannot be known, as that of a lock."""
    if type(value) in (list, tuple):
        return value
    if type(value) is dict:
        return [part for item in value.items() for part in item]
    if isinstance(value, FunctionType):
        return [value.__code__, value.__defaults__, value.__kwdefaults__, value.__closure__, vars(value)]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, CellType):
        return [value.cell_contents] if value != CellType() else []
    try:
        reduced: Any = value.__reduce_ex__(4)  # as pickle takes it apart
    except Exception as error:  # of the user's class
        log.debug("the content of a %s is not known: %s", type(value).__name__, error)
        return []
    if isinstance(reduced, str):
        return [reduced]
    return [list(part) if isinstance(part, Iterator) else part for part in reduced]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
