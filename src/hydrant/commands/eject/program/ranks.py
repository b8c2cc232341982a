"""The ranks of a run: processes that torchrun starts, which share the samples of each update."""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from hydrant.commands.eject.program.settings import DEVICE, NUM_MICRO_STEPS, NUM_RANKS


def join_ranks() -> None:
    """Join the other ranks."""
    if int(os.environ.get("WORLD_SIZE", "1")) != NUM_RANKS:
        sys.exit(f"start {NUM_RANKS} ranks: torchrun --nproc-per-node {NUM_RANKS} {sys.argv[0]}")
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    dist.init_process_group()


def sync_of_step(model: Any, micro_step: int) -> AbstractContextManager[None]:
    """Return the context of one forward and backward pass: the ranks average their gradients in the last one."""
    return nullcontext() if micro_step == NUM_MICRO_STEPS - 1 else model.no_sync()


def of_all_ranks(value: Any) -> list[Any]:
    """Return what each rank has."""
    values: list[Any] = [None] * NUM_RANKS
    dist.all_gather_object(values, value)
    return values
