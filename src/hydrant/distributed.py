"""Which rank this process is, and on which device it computes. The launcher says so, never a config file."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch


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
