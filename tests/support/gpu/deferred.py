"""Results of operations whose kernels have not run yet. At the level "time", a kernel waits in its stream."""

from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map

from gpu.memory import host_view


def results_of(operation: OpOverload, device: torch.device, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return the tensors on a GPU that an operation returns. Their values are whatever their memory holds.

    Raises:
        NotImplementedError: torch cannot tell their shapes from those of the arguments.
    """
    returns = operation._schema.returns
    if not returns:
        return None
    written = _written(operation, args, kwargs)
    if len(written) == len(returns) and not operation._schema.name.endswith("_out") and "out" not in kwargs:
        return written[0] if len(written) == 1 else tuple(written)
    return _MetaCall(device).results(operation, args, kwargs)


def views_of(results: Any) -> Any:
    """Return the results as tensors on the host, which a kernel fills later. They do not keep the memory from reuse."""
    return tree_map(lambda x: host_view(x) if isinstance(x, torch.Tensor) else x, results)


def fill(views: Any, values: Any) -> None:
    """Copy what a kernel of the CPU has returned into the views, except what it has computed in place."""
    if isinstance(views, torch.Tensor):
        if not is_same_memory(views, values):
            views.copy_(values)
    elif isinstance(views, list | tuple):
        for view, value in zip(views, values, strict=True):
            fill(view, value)


def _written(operation: OpOverload, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the arguments that the operation writes to and returns."""
    names = [argument.name for argument in operation._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    return [
        given[argument.name]
        for argument in operation._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write and argument.name in given
    ]


def is_same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


class _MetaCall:
    """A call of an operation with tensors that have no memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def results(self, operation: OpOverload, args: Any, kwargs: dict[str, Any]) -> Any:
        args, kwargs = tree_map(self._lowered, args), tree_map(self._lowered, kwargs)
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        with torch._C._AutoDispatchBelowAutograd():
            results = operation(*args, **kwargs)
        for meta, tensor in self._pairs:
            if meta.shape != tensor.shape:  # an `out` argument
                tensor.resize_(meta.shape)
        return tree_map(self._raised, results)

    def _lowered(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and not value.is_meta:
            meta = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
            if value.is_cuda:
                self._pairs.append((meta, value))
            return meta
        if isinstance(value, torch.device):
            return torch.device("meta")
        return None if isinstance(value, torch.Generator) else value

    def _raised(self, result: Any) -> Any:
        if not isinstance(result, torch.Tensor):
            return result
        for meta, tensor in self._pairs:
            if result is meta:
                return tensor
        return torch.empty_strided(result.shape, result.stride(), dtype=result.dtype, device=self._device)
