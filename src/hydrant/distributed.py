"""Which rank this process is, and on which device it computes. The launcher says so, never a config file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class World:
    """This process among the ranks of its run, in torchrun's words."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device

    @classmethod
    def from_launcher(cls) -> World:
        """Read what torchrun set; a process that no launcher started is the only rank."""
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
        return cls(
            int(os.environ.get("RANK", "0")), local_rank, int(os.environ.get("WORLD_SIZE", "1")), device
        )

    def activate(self) -> None:
        """Make the device the current one."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    @contextlib.contextmanager
    def group(self) -> Generator[None]:
        """While it lasts, collectives reach all ranks of the run: one rank is a group of one."""
        if dist.is_initialized():
            yield
            return
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=self.rank, world_size=self.world_size)
        try:
            yield
        finally:
            dist.destroy_process_group()
