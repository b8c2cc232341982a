"""The ranks of a run: processes that torchrun starts, which share the samples of each update."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

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


def of_all_ranks(measured: list[tuple[int, Tensor]]) -> list[Any]:
    """Return the measurements of all ranks, in their order."""
    values: list[Any] = [None] * NUM_RANKS
    on_host = [(size, metrics.cpu()) for size, metrics in measured]  # or each rank would use all GPUs
    dist.all_gather_object(values, on_host)
    return values
