"""Which collectives a task calls in its forward, where, and whether torch.compile computes their gradient."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hydrant.errors import innermost

_NAMESPACES = ("c10d", "_c10d_functional")
_NAMES: dict[str, str] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather_into_tensor",
}
"""c10d's names, as torch.distributed has them."""


@dataclass(frozen=True)
class Collective:
    """One call of an operation over all ranks."""

    name: str  # all_reduce
    location: str  # file:line of the code that called it
    changes_gradient: bool
    """It writes into a tensor that takes part in the gradient. Autograd does not see that; torch.compile, which
    makes it an operation with a backward of its own, computes another gradient."""

    def __str__(self) -> str:
        return f"{self.name} at {self.location}"


class Collectives(TorchDispatchMode):
    """While it lasts, notes every collective in `found`."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Collective] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        space, _, name = func._schema.name.partition("::")
        if space in _NAMESPACES and not name.startswith(("wait", "_wrap")):
            written = name.endswith("_") and torch.is_grad_enabled() and _needs_gradient(args)
            own = name.rstrip("_")
            plain = _NAMES.get(own) or own
            self.found.append(Collective(plain, _caller(), written))
        return func(*args, **(kwargs or {}))


def _needs_gradient(values: Iterable[Any]) -> bool:
    for value in values:
        if isinstance(value, Tensor) and value.requires_grad:
            return True
        if isinstance(value, list | tuple) and _needs_gradient(value):
            return True
    return False


def _caller() -> str:
    """file:line of the innermost code that is in no installed package."""
    stack = traceback.extract_stack()[:-2]  # without this module
    file, line = innermost((frame.filename, frame.lineno) for frame in stack)
    return f"{file}:{line}"
