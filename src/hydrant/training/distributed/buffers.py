"""The buffers of a task on several ranks: equal after every update, with the batch norm statistics of a single rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase  # pyright: ignore[reportPrivateUsage]

_STATISTICS = ("running_mean", "running_var")
_COUNT = "num_batches_tracked"


class RankBuffers:
    """Makes the buffers of a task equal on all ranks after every update. With one rank it does nothing.

    A single rank adds the statistics x of one micro-batch after the other to the running statistics r of a batch norm:
    r <- b * r + (1 - b) * x, with b = 1 - momentum. R ranks add R micro-batches at the same time, and each rank sees
    one of them. So the constructor sets the momentum to 1 - b**R: one micro-batch counts for R. Then the mean of r over
    the ranks, with weights in proportion to b**(R - 1 - rank), is what a single rank has, except for rounding, if a
    forward pass calls the module once. With momentum=None, which averages all micro-batches, the weights are equal.

    All other buffers get the values of rank 0, as in DDP.

    Args:
        task: the task on its device, with the momenta of a single rank.
        rank: this rank.
        num_ranks: the number of ranks, R.
    """

    def __init__(self, task: nn.Module, rank: int, num_ranks: int) -> None:
        modules: list[Any] = list(task.modules()) if num_ranks > 1 else []
        norms = [module for module in modules if _has_own_statistics(module)]
        self._statistics: list[Tensor] = [getattr(norm, name) for norm in norms for name in _STATISTICS]
        self._counts: list[Tensor] = [getattr(norm, _COUNT) for norm in norms]
        combined = {id(buffer) for buffer in (*self._statistics, *self._counts)}
        # A forward pass may assign a new tensor to a buffer, so the places are kept.
        places = [(module._buffers, name) for module in modules for name in module._buffers]
        self._others = [(buffers, name) for buffers, name in places if id(buffers[name]) not in combined]
        self._weights = self._set_momenta(norms, rank, num_ranks)
        self._counts_before = torch.empty(0)
        self._is_rank_zero = rank == 0

    def begin_update(self) -> None:
        """Note the numbers of batches before an update."""
        if self._counts:
            self._counts_before = torch.stack(self._counts)

    def end_update(self) -> None:
        """Make the buffers equal after an update. Every rank calls it."""
        if self._counts:
            self._combine_statistics()
        if self._others:
            buffers = [of_module[name] for of_module, name in self._others]
            self._copy_from_rank_zero([buffer for buffer in buffers if buffer is not None])

    def _set_momenta(self, norms: Sequence[Any], rank: int, num_ranks: int) -> Tensor:
        """Set the momenta for these ranks; return the weight of each statistic, then of each count, in float64."""
        weights: list[Tensor] = []
        for norm in norms:
            b = 1.0 if norm.momentum is None else 1.0 - norm.momentum
            powers = [b**n for n in range(num_ranks)]
            weight = powers[num_ranks - 1 - rank] / sum(powers)
            weights.append(torch.full((2 * norm.num_features,), weight, dtype=torch.float64))
        # momentum=None divides by the count, so it has to remain that of one rank.
        counts = [1.0 / num_ranks if norm.momentum is None else 1.0 for norm in norms]
        for norm in norms:
            if norm.momentum is not None:
                norm.momentum = 1.0 - (1.0 - norm.momentum) ** num_ranks
        device = self._statistics[0].device if norms else None
        return torch.cat([*weights, torch.tensor(counts, dtype=torch.float64)]).to(device)

    @torch.no_grad()
    def _combine_statistics(self) -> None:
        added = torch.stack(self._counts) - self._counts_before
        # In float64, a statistic that no rank has changed remains the same after rounding.
        flat = torch.cat([torch.cat([s.flatten() for s in self._statistics]).double(), added.double()])
        dist.all_reduce(flat.mul_(self._weights))
        *statistics, added = flat.split([*(s.numel() for s in self._statistics), len(self._counts)])
        _copy_all(self._statistics, statistics)
        _copy_all(self._counts, list((self._counts_before + added.round().long()).unbind()))

    @torch.no_grad()
    def _copy_from_rank_zero(self, buffers: list[Tensor]) -> None:
        if not buffers:
            return
        # As bytes, because backends lack some dtypes. Wide elements come first, so that all are aligned.
        buffers = sorted(buffers, key=lambda buffer: -buffer.element_size())
        flat = torch.cat([buffer.detach().reshape(-1).view(torch.uint8) for buffer in buffers])
        dist.broadcast(flat, src=0)
        if not self._is_rank_zero:
            parts = flat.split([buffer.nbytes for buffer in buffers])
            _copy_all(buffers, [p.view(b.dtype).view(b.shape) for b, p in zip(buffers, parts, strict=True)])


def uses_batch_statistics(task: nn.Module) -> bool:
    """Return whether a module normalizes by the statistics of the micro-batch of one rank."""
    norms = [m for m in task.modules() if isinstance(m, _BatchNorm) and not isinstance(m, nn.SyncBatchNorm)]
    return any(norm.training for norm in norms)


def _has_own_statistics(module: nn.Module) -> bool:
    """Return whether a norm tracks statistics of the samples of this rank only."""
    if not isinstance(module, _NormBase) or isinstance(module, nn.SyncBatchNorm):
        return False
    return all(getattr(module, name) is not None for name in (*_STATISTICS, _COUNT))


def _copy_all(targets: list[Tensor], values: Sequence[Tensor]) -> None:
    torch._foreach_copy_(targets, list(values))  # pyright: ignore[reportPrivateUsage]
