"""Tensors of which a rank may hold a share alone: in one piece, and their norm."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import Tensor
from torch.nn.utils import get_total_norm

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Any) -> TypeGuard[DTensor]:
    """Whether it is torch's DTensor. Where there is one, its module is loaded, which takes most of a second."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """A tensor in one piece; of a sharded one, all ranks ask together."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def total_norm(tensors: Sequence[Tensor]) -> Tensor:
    """The 2-norm of all of them together, shape (); of sharded ones over all ranks, which all call it then."""
    plain = [t for t in tensors if not is_sharded(t)]
    sharded = [t for t in tensors if is_sharded(t)]
    norms = [whole(get_total_norm(some)) for some in (plain, sharded) if some]
    return norms[0] if len(norms) == 1 else get_total_norm(norms)


def differs(eager: Tensor, other: Tensor, most: float) -> bool:
    """Whether two tensors are more than `most` apart in 2-norm. Where `eager` is not finite, nothing can be said."""
    if not bool(eager.isfinite().all()):
        return False
    return not float((eager - other).double().norm()) <= most  # also where that is NaN
