"""Norms and comparison of tensors, which may be sharded over the ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from hydrant.batch import as_real

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


_MODULE_OF_DTENSOR = "torch.distributed.tensor"
"""It is loaded if there is a DTensor. Importing it takes most of a second."""


def is_sharded(tensor: Any) -> TypeGuard[DTensor]:
    """Return whether a value is a DTensor."""
    module = sys.modules.get(_MODULE_OF_DTENSOR)
    return module is not None and isinstance(tensor, module.DTensor)


def full_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor in one piece. If it is sharded, all ranks must call this together."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def local_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return this rank's shards of sharded tensors, and other tensors as they are.

    An operation on a DTensor takes the host some 50 us. Code that treats all entries alike uses their shards instead.
    """
    if _MODULE_OF_DTENSOR not in sys.modules:
        return list(tensors)
    with torch.no_grad():
        return [t.to_local() if is_sharded(t) else t for t in tensors]


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the 2-norm of all tensors together, shape (). If some are sharded, all ranks must call this together."""
    by_layout: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        layout = (tensor.device_mesh, tensor.placements) if is_sharded(tensor) else None
        by_layout.setdefault(layout, []).append(tensor)
    norms = [
        _norm_over_ranks(get_total_norm(local_tensors(group)), *(layout or ()))
        for layout, group in by_layout.items()
    ]
    return norms[0] if len(norms) == 1 else get_total_norm(norms)


@torch.no_grad()
def _norm_over_ranks(norm: Tensor, mesh: Any = None, placements: Sequence[Any] = ()) -> Tensor:
    """Return the norm over the ranks among which tensors of a layout are split; they hold shards with this norm."""
    if mesh is None:
        return norm
    from torch.distributed.tensor import DTensor, Partial, Replicate

    summed = [Partial() if placement.is_shard() else Replicate() for placement in placements]
    squares = DTensor.from_local(norm.double().square(), mesh, summed, run_check=False)
    return squares.full_tensor().sqrt().to(norm)


def exceeds_distance(eager: Tensor, other: Tensor, max_distance: float) -> bool:
    """Return whether the 2-norm of the difference is above `max_distance`; False if `eager` is not finite."""
    if not bool(eager.isfinite().all()):
        return False
    return not float(as_real(eager - other).double().norm()) <= max_distance  # True for NaN, too
