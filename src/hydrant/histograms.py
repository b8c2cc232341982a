"""How weights and gradients are spread: counted on the device, and read with one transfer."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hydrant.norms import is_sharded
from hydrant.trackers.base import Histogram

NUM_BINS = 64


@torch.no_grad()
def histograms(model: nn.Module) -> dict[str, Histogram]:
    """Of every parameter `weights/<name>` and, where it has one, `gradients/<name>`.

    Where ranks hold shares of them, all ranks ask together and get those of the whole tensors.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        tensors[f"weights/{name}"] = parameter.detach()
        if parameter.grad is not None:
            tensors[f"gradients/{name}"] = parameter.grad
    if not tensors:
        return {}
    is_spread = any(is_sharded(tensor) for tensor in tensors.values())
    values = [_own_values(tensor) for tensor in tensors.values()]
    extremes = torch.stack([_extremes(own) for own in values])  # (tensors, 2)
    if is_spread:
        dist.all_reduce(extremes, op=dist.ReduceOp.MAX)
    bounds = _bounds(extremes)
    counted = torch.stack([_counted(own, bound) for own, bound in zip(values, bounds, strict=True)])
    if is_spread:
        dist.all_reduce(counted)
    rows: list[list[float]] = torch.cat([bounds, counted], dim=1).tolist()  # the one transfer
    return {
        key: _histogram(row, _num_copies(tensor) if is_spread else 1)
        for (key, tensor), row in zip(tensors.items(), rows, strict=True)
    }


def _own_values(tensor: Tensor) -> Tensor:
    """What this rank has of a tensor, flat."""
    own = tensor.to_local() if is_sharded(tensor) else tensor
    return (own.coalesce().values() if own.is_sparse else own).reshape(-1).float()


def _extremes(values: Tensor) -> Tensor:
    """The least finite value, negated, and the largest, (2,) float64; -inf where there are none."""
    if not values.numel():
        return values.new_full((2,), -math.inf, dtype=torch.float64)
    is_finite = values.isfinite()
    ends = [torch.where(is_finite, sign * values, -math.inf).amax() for sign in (-1, 1)]
    return torch.stack(ends).double()


def _bounds(extremes: Tensor) -> Tensor:
    """Where the bins of each tensor begin and end, (tensors, 2): as numpy's do, 1 apart where all values are equal."""
    low, high = -extremes[:, 0], extremes[:, 1]
    is_empty = low > high
    low, high = (end.masked_fill(is_empty, 0) for end in (low, high))
    margin = 0.5 * (low == high)
    return torch.stack([low - margin, high + margin], dim=1)


def _counted(values: Tensor, bounds: Tensor) -> Tensor:
    """The counts of the bins, the sum and the sum of squares of the finite values, (NUM_BINS + 2,) float64."""
    is_finite = values.isfinite()
    low, high = bounds.float()
    position = ((values - low) * (NUM_BINS / (high - low))).nan_to_num(0).clamp_(0, NUM_BINS - 1)
    counts = torch.zeros(NUM_BINS, dtype=torch.int64, device=values.device)
    counts.scatter_add_(0, position.long(), is_finite.long())  # torch.bincount would wait for the device
    finite = values.masked_fill(~is_finite, 0)
    sums = [finite.sum(dtype=torch.float64), finite.square().sum(dtype=torch.float64)]
    return torch.cat([counts.double(), torch.stack(sums)])


def _num_copies(tensor: Tensor) -> int:
    """How many ranks hold the same of a tensor."""
    if not is_sharded(tensor):
        return dist.get_world_size()
    mesh, placements = tensor.device_mesh, tensor.placements
    return math.prod(mesh.size(n) for n, placement in enumerate(placements) if placement.is_replicate())


def _histogram(row: list[float], num_copies: int) -> Histogram:
    low, high, *counts, total, squares = row
    whole = [round(count / num_copies) for count in counts]
    return Histogram(low, high, whole, total / num_copies, squares / num_copies)
