"""Which rank this process is, and on which device it computes. The launcher says so, never a config file."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")

_FIRST_PORT = 20_000  # below those that Linux gives to whoever connects


@dataclass(frozen=True)
class World:
    """This process among the ranks of its run, in torchrun's words."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device

    @classmethod
    def from_launcher(cls) -> World:
        """Read what torchrun or srun set; a process that no launcher started is the only rank."""
        _speak_torchrun()
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
        return cls(
            int(os.environ.get("RANK", "0")), local_rank, int(os.environ.get("WORLD_SIZE", "1")), device
        )

    @property
    def is_rank_zero(self) -> bool:
        return self.rank == 0

    def activate(self) -> None:
        """Make the device the current one."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    @contextlib.contextmanager
    def group(self, timeout_seconds: float = 1800) -> Generator[None]:
        """While it lasts, collectives reach all ranks of the run: one rank is a group of one.

        Tensors on the host go by gloo, those on CUDA by NCCL. One that waits longer than `timeout_seconds` fails.
        """
        if dist.is_initialized():
            yield
            return
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        timeout = timedelta(seconds=timeout_seconds)
        if self.world_size == 1:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
        else:
            dist.init_process_group(backend, timeout=timeout)
        try:
            yield
        finally:
            dist.destroy_process_group()

    def on_rank_zero(self, function: Callable[[], T]) -> T | None:
        """What `function` gives on rank 0, and None elsewhere; what it raises is raised on every rank."""
        if self.world_size == 1:
            return function()
        result: T | None = None
        box: list[Exception | None] = [None]
        if self.is_rank_zero:
            try:
                result = function()
            except Exception as raised:  # whatever it is, all ranks are to end by it
                box = [raised]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        error = box[0]
        if error is not None:
            raise error
        return result

    def from_rank_zero(self, function: Callable[[], T]) -> T:
        """What `function` gives on rank 0, on every rank; picklable, and so is what it raises."""
        box: list[Any] = [self.on_rank_zero(function)]
        if self.world_size > 1:
            dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def gather(self, value: T) -> list[T]:
        """What each rank gives, by rank, on every rank."""
        if self.world_size == 1:
            return [value]
        box: list[Any] = [None] * self.world_size
        dist.all_gather_object(box, value)
        return box


def is_started_as_rank() -> bool:
    """Whether a launcher started this process as one of several ranks."""
    return "RANK" in os.environ or (
        int(os.environ.get("SLURM_NTASKS", "1")) > 1 and "SLURM_PROCID" in os.environ
    )


def _speak_torchrun() -> None:
    """Say in torchrun's words what srun says in its own."""
    if "RANK" in os.environ or not is_started_as_rank():
        return
    told = {
        "RANK": os.environ["SLURM_PROCID"],
        "LOCAL_RANK": os.environ["SLURM_LOCALID"],
        "WORLD_SIZE": os.environ["SLURM_NTASKS"],
        "MASTER_ADDR": _first_host(os.environ["SLURM_JOB_NODELIST"]),
        "MASTER_PORT": str(_FIRST_PORT + int(os.environ["SLURM_JOB_ID"]) % 10_000),
    }
    os.environ.update({key: value for key, value in told.items() if key not in os.environ})


def _first_host(nodes: str) -> str:
    """The first of the hosts that SLURM writes like `node[3-5,7]`."""
    found = subprocess.run(
        ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True
    )
    return found.stdout.split()[0]
