"""Histograms of weights and gradients: counted on the device and read with one transfer."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hydrant.optimizers.norms import is_sharded
from hydrant.trackers.base import Histogram

NUM_BINS = 64


@torch.no_grad()
def histograms(model: nn.Module) -> dict[str, Histogram]:
    """Return `weights/<name>` for every parameter and `gradients/<name>` for those with a gradient.

    With sharded parameters all ranks must call this together; each gets the histograms of the whole tensors.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        tensors[f"weights/{name}"] = parameter.detach()
        if parameter.grad is not None:
            tensors[f"gradients/{name}"] = parameter.grad
    if not tensors:
        return {}
    has_shards = any(is_sharded(tensor) for tensor in tensors.values())
    values = [_local_values(tensor) for tensor in tensors.values()]
    extremes = torch.stack([_extremes(local) for local in values])  # (tensors, 2)
    if has_shards:
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
    bounds = _bounds(extremes)
    counts = torch.stack([_count(local, bound) for local, bound in zip(values, bounds, strict=True)])
    if has_shards:
        dist.all_reduce(counts)
    rows: list[list[float]] = torch.cat([bounds, counts], dim=1).tolist()  # the one transfer
    return {
        key: _histogram(row, _num_copies(tensor) if has_shards else 1)
        for (key, tensor), row in zip(tensors.items(), rows, strict=True)
    }


def _local_values(tensor: Tensor) -> Tensor:
    """Return this rank's values of a tensor as flat float32."""
    local = tensor.to_local() if is_sharded(tensor) else tensor
    return (local.coalesce().values() if local.is_sparse else local).reshape(-1).float()


def _extremes(values: Tensor) -> Tensor:
    """Return (-minimum, maximum) of the finite values, (2,) float64; -inf twice if there are none."""
    if not values.numel():
        return values.new_full((2,), -math.inf, dtype=torch.float64)
    is_finite = values.isfinite()
    ends = [torch.where(is_finite, sign * values, -math.inf).amax() for sign in (-1, 1)]
    return torch.stack(ends).double()


def _bounds(extremes: Tensor) -> Tensor:
    """Return the range of each tensor's bins, (tensors, 2). As in numpy, its width is 1 if all values are equal."""
    low, high = -extremes[:, 0], extremes[:, 1]
    is_empty = low > high
    low, high = (end.masked_fill(is_empty, 0) for end in (low, high))
    margin = 0.5 * (low == high)
    return torch.stack([low - margin, high + margin], dim=1)


def _count(values: Tensor, bounds: Tensor) -> Tensor:
    """Return the bin counts, the sum and the sum of squares of the finite values, (NUM_BINS + 2,) float64."""
    is_finite = values.isfinite()
    low, high = bounds.float()
    position = ((values - low) * (NUM_BINS / (high - low))).nan_to_num(0).clamp_(0, NUM_BINS - 1)
    counts = torch.zeros(NUM_BINS, dtype=torch.int64, device=values.device)
    counts.scatter_add_(0, position.long(), is_finite.long())  # torch.bincount would wait for the device
    finite = values.masked_fill(~is_finite, 0)
    sums = [finite.sum(dtype=torch.float64), finite.square().sum(dtype=torch.float64)]
    return torch.cat([counts.double(), torch.stack(sums)])


def _num_copies(tensor: Tensor) -> int:
    """Return how many ranks hold the same values of a tensor."""
    if not is_sharded(tensor):
        return dist.get_world_size()
    mesh, placements = tensor.device_mesh, tensor.placements
    return math.prod(mesh.size(n) for n, placement in enumerate(placements) if placement.is_replicate())


def _histogram(row: list[float], num_copies: int) -> Histogram:
    low, high, *counts, total, squares = row
    counts = [round(count / num_copies) for count in counts]
    return Histogram(low, high, counts, total / num_copies, squares / num_copies)
