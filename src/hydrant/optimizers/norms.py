"""Norms and comparison of tensors, which may be sharded over the ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import Tensor
from torch.nn.utils import get_total_norm

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Any) -> TypeGuard[DTensor]:
    """Return whether a value is a DTensor. Does not import its module, because that takes most of a second."""
    module = sys.modules.get("torch.distributed.tensor")  # loaded if a DTensor exists
    return module is not None and isinstance(tensor, module.DTensor)


def full_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor in one piece. If it is sharded, all ranks must call this together."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the 2-norm of all tensors together, shape (). If some are sharded, all ranks must call this together."""
    plain = [t for t in tensors if not is_sharded(t)]
    sharded = [t for t in tensors if is_sharded(t)]
    norms = [full_tensor(get_total_norm(group)) for group in (plain, sharded) if group]
    return norms[0] if len(norms) == 1 else get_total_norm(norms)


def exceeds_distance(eager: Tensor, other: Tensor, max_distance: float) -> bool:
    """Return whether the 2-norm of the difference is above `max_distance`; False if `eager` is not finite."""
    if not bool(eager.isfinite().all()):
        return False
    return not float((eager - other).double().norm()) <= max_distance  # True for NaN, too
