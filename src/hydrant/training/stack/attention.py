"""Attention of all lanes at once: under `torch.vmap`, the samples of all lanes are one batch."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet, _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch import pyfunctorch

from hydrant.training.stack.functions import with_lanes

_attend = torch.ops.aten.scaled_dot_product_attention.default
_BELOW_VMAP = DispatchKeySet(DispatchKey.FuncTorchDynamicLayerBackMode)


@functools.cache
def fold_attention() -> torch.library.Library:
    """Let `torch.vmap` map `scaled_dot_product_attention` by one call for all lanes, from now on in this process.

    This holds wherever it is called: by a module of torch or timm, and in compiled code. torch itself maps the kernel
    that it chooses for a lane (November 2026). So autocast does not convert the inputs, the kernel of the CPU is called
    lane by lane, and torch 2.11 finds no weights to train: on CUDA, the memory-efficient kernel keeps no sums for the
    backward pass, which fails ("LSE is not correctly aligned").

    Returns:
        what holds the rule. torch forgets it with this object.
    """
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # torch 2.11 gives it also with `allow_override`.
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        library.impl("scaled_dot_product_attention", _map, "FuncTorchVmapMode", allow_override=True)
    return library


def _map(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return the attention of every lane: of (B, H, L, D) in each by one call for (lanes * B, H, L, D).

    With dropout, whose numbers would be drawn for all lanes at once, and with inputs of other batches, for which torch
    has no fused kernel, it is mapped as by torch.
    """
    inputs, options = (query, key, value), {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    batch = query.shape[:-3]
    if dropout_p or any(x.ndim < 3 or x.shape[:-3] != batch for x in inputs):
        return _attend.decompose(*inputs, attn_mask, dropout_p, **options)
    vmap: Any = pyfunctorch.retrieve_current_functorch_interpreter()
    level, num_lanes = vmap.level(), vmap.batch_size()
    folded = [with_lanes(x, level, num_lanes).flatten(0, -4) for x in inputs]
    mask = None if attn_mask is None else _folded_mask(attn_mask, level, num_lanes, batch)
    mixed = _attend.redispatch(_BELOW_VMAP, *folded, mask, **options)
    return _functorch._add_batch_dim(mixed.unflatten(0, (num_lanes, *batch)), 0, level)


def _folded_mask(mask: Tensor, level: int, num_lanes: int, batch: torch.Size) -> Tensor:
    """Return a mask or bias of (lanes * B, H, L, L), or one that all samples of all lanes share."""
    plain, lane_dim = _functorch._unwrap_batched(mask, level)
    if lane_dim is None and mask.ndim <= 4 and mask.shape[:-3].numel() == 1:
        return plain
    missing = [None] * (len(batch) + 3 - mask.ndim)
    of_lanes = with_lanes(mask, level, num_lanes)[(slice(None), *missing)]
    return of_lanes.expand(-1, *batch, -1, -1, -1).flatten(0, -4)
