"""Record the collectives that a task calls in its forward, and whether torch.compile computes their gradient."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hydrant.errors import innermost

_NAMESPACES = ("c10d", "_c10d_functional")
_PUBLIC_NAMES: dict[str, str] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather_into_tensor",
}
"""The names of c10d's operators in torch.distributed, where the two differ."""


@dataclass(frozen=True)
class Collective:
    """One call of a collective."""

    name: str  # such as all_reduce
    location: str  # file:line of the caller
    changes_gradient: bool
    """It writes into a tensor that requires a gradient. Eager autograd does not see that write. torch.compile turns
    it into an operator with a backward, so it computes another gradient."""

    def __str__(self) -> str:
        return f"{self.name} at {self.location}"


class CollectiveRecorder(TorchDispatchMode):
    """A context that records every collective in `collectives`."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.collectives: list[Collective] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        schema = getattr(func, "_schema", None)  # a higher order operator has none
        namespace, _, operator = getattr(schema, "name", "").partition("::")
        if namespace in _NAMESPACES and not operator.startswith(("wait", "_wrap")):
            is_in_place, name = operator.endswith("_"), operator.rstrip("_")
            changes_gradient = is_in_place and torch.is_grad_enabled() and _requires_grad(args)
            self.collectives.append(Collective(_PUBLIC_NAMES.get(name) or name, _caller(), changes_gradient))
        return func(*args, **(kwargs or {}))


def _requires_grad(value: Any) -> bool:
    """Return whether a tensor, or one in a nested list or tuple, requires a gradient."""
    if isinstance(value, list | tuple):
        return any(map(_requires_grad, value))
    return isinstance(value, Tensor) and value.requires_grad


def _caller() -> str:
    """Return file:line of the innermost user code."""
    stack = traceback.extract_stack()[:-2]  # without the two frames of this module
    file, line = innermost((frame.filename, frame.lineno) for frame in stack)
    return f"{file}:{line}"
