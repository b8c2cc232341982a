"""The ranks of a run: processes that torchrun starts, which share the samples of each update."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hydrant.commands.eject.program.settings import *


def join_ranks() -> None:
    """Check the number of ranks, and connect them."""
    if int(os.environ.get("WORLD_SIZE", "1")) != NUM_RANKS:
        sys.exit(f"start {NUM_RANKS} ranks: torchrun --nproc-per-node {NUM_RANKS} {sys.argv[0]}")
    if torch.cuda.is_available():
        torch.cuda.set_device(DEVICE)
    dist.init_process_group()


def sync_of_step(model: Any, batch_idx: int) -> AbstractContextManager[None]:
    """Return the context of one forward and backward pass: the ranks average their gradients in the last one."""
    return nullcontext() if batch_idx // NUM_RANKS == NUM_MICRO_STEPS - 1 else model.no_sync()


class RankedNorms:
    """The batch norms of a model, whose statistics are kept as by one process that has all batches.

    That process takes in the statistics of one batch after the other. Here each rank takes in those of its batch, as if
    NUM_RANKS batches had them. The weighted mean over the ranks then lets later ones of these batches count for more.
    """

    def __init__(self, model: nn.Module) -> None:
        modules: list[Any] = list(model.modules())
        self.norms = [each for each in modules if getattr(each, "num_batches_tracked", None) is not None]
        self.weights = list[float]()
        for norm in self.norms:
            kept = [(1 - norm.momentum) ** n for n in range(NUM_RANKS + 1)]  # of the old statistics
            self.weights.append(kept[NUM_RANKS - 1 - RANK] / sum(kept[:NUM_RANKS]))
            norm.momentum = 1 - kept[NUM_RANKS]

    def begin_update(self) -> None:
        """Note the numbers of batches before an update."""
        self.counts = [norm.num_batches_tracked.clone() for norm in self.norms]

    @torch.no_grad()
    def end_update(self) -> None:
        """Combine the statistics of all ranks after an update."""
        for norm, weight, count in zip(self.norms, self.weights, self.counts, strict=True):
            for statistic in (norm.running_mean, norm.running_var):
                mean = statistic.double() * weight
                dist.all_reduce(mean)
                statistic.copy_(mean)
            added = norm.num_batches_tracked - count
            dist.all_reduce(added)
            norm.num_batches_tracked.copy_(count + added)


def of_all_ranks(measured: list[tuple[int, Tensor]]) -> list[Any]:
    """Return the measurements of all ranks, in their order."""
    values: list[Any] = [None] * NUM_RANKS
    on_host = [(size, metrics.cpu()) for size, metrics in measured]  # or each rank would use all GPUs
    dist.all_gather_object(values, on_host)
    return values
