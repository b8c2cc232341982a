"""Gradient clipping, and the norms and the comparison of tensors that may be sharded over the ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn
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


@dataclass(frozen=True)
class Clipping:
    """Clips the unscaled gradients of an update by each limit that is given, in the order of the arguments.

    Args:
        max_norm: limit of the 2-norm of all gradients together (Pascanu et al., 2013; torch's `clip_grad_norm_`).
        max_value: limit of the absolute value of each entry (torch's `clip_grad_value_`).
        agc: adaptive gradient clipping: limit of the ratio between the gradient norm and the weight norm of each unit
            (Brock et al., "High-performance large-scale image recognition without normalization", 2021; timm's
            `adaptive_clip_grad`).
        head: `id`s of the parameters of the last layer, which `agc` does not clip.
    """

    max_norm: float | None = None
    max_value: float | None = None
    agc: float | None = None
    head: frozenset[int] = frozenset()

    @property
    def key(self) -> str | None:
        """The config key of the first limit; None without one."""
        limits = {"max_grad_norm": self.max_norm, "max_grad_value": self.max_value, "agc": self.agc}
        return next((key for key, limit in limits.items() if limit is not None), None)

    def __call__(self, parameters: Sequence[nn.Parameter], norm: Tensor | None) -> None:
        """Clip in place. `norm`, shape (), is the norm of all gradients; only `max_norm` needs it."""
        gradients = local_gradients(parameters)
        if self.max_norm is not None and norm is not None and gradients:
            torch._foreach_mul_(gradients, norm_ratio(norm, self.max_norm))  # pyright: ignore[reportPrivateUsage]
        if self.max_value is not None and gradients:
            torch._foreach_clamp_min_(gradients, -self.max_value)  # pyright: ignore[reportPrivateUsage]
            torch._foreach_clamp_max_(gradients, self.max_value)  # pyright: ignore[reportPrivateUsage]
        if self.agc is not None:
            from timm.utils.agc import adaptive_clip_grad

            adaptive_clip_grad([p for p in parameters if id(p) not in self.head], clip_factor=self.agc)


def norm_ratio(norm: Tensor, max_norm: float | Tensor) -> Tensor:
    """Return what gradients are multiplied by so that their norm is at most `max_norm`; it is 1 if it already is.

    Args:
        norm: shape (), or of each lane of a stack, (lanes,).
        max_norm: a number, or one for each lane, (lanes,).
    """
    # Without a branch, which would wait for the device. torch divides a number by a tensor like this; dividing one
    # tensor by another rounds in another way.
    return ((norm + 1e-6).reciprocal() * max_norm).to(norm.dtype).clamp(max=1.0)


def gradient_norm(parameters: Sequence[nn.Parameter]) -> Tensor:
    """Return the 2-norm of all gradients together, shape (). If some are sharded, all ranks must call this together."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    return total_norm([g.coalesce().values() if g.is_sparse else g for g in gradients])


def local_gradients(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Return the gradients that there are, or this rank's shards of them."""
    return local_tensors(p.grad for p in parameters if p.grad is not None)
