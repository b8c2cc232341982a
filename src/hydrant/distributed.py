"""Which rank this process is, and on which device it computes. The launcher says so, never a config file."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from hydrant.errors import ConfigError, typed_line
from hydrant.launchers import speak_torchrun

T = TypeVar("T")

_LATER_SECONDS = 300.0
_STORE_SECONDS = 30.0


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
        speak_torchrun()
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

        Tensors on the host go by gloo, those on CUDA by NCCL. One that waits much longer than `timeout_seconds` fails:
        before that, it is found who keeps it waiting. Within another group this is that one, with its timeout.
        """
        if dist.is_initialized():
            yield
            return
        check_gpus(self.local_rank + 1)
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        timeout = timedelta(seconds=timeout_seconds + _LATER_SECONDS)
        if self.world_size == 1:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
        else:
            store, rank, world_size = next(rendezvous("env://", timeout=timeout))
            # The agent keeps its store when it starts ranks again: those of before left their addresses there.
            store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
            dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=timeout)
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
        error: Exception | None = None
        if self.is_rank_zero:
            try:
                result = function()
            except Exception as raised:  # whatever it is, all ranks are to end by it
                box = [_travelling(raised)]
                error = raised
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        error = error or box[0]
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

    def store(self, name: str) -> dist.Store:
        """The store by which the ranks found each other, over a connection of its own."""
        pool: Any = dist.distributed_c10d
        store = dist.PrefixStore(name, pool._get_default_store().clone())
        store.set_timeout(timedelta(seconds=_STORE_SECONDS))
        return store

    def first_told(self, of: str, text: str) -> tuple[int, str]:
        """What the first of all ranks tells that calls this of something, and which that is. Waits for none of them."""
        own = f"{self.rank} {text}"
        if self.world_size > 1 and dist.is_initialized():
            with contextlib.suppress(RuntimeError):  # the store is gone with who held it
                own = self.store("first").compare_set(of, "", own).decode()
        rank, _, told = own.partition(" ")
        return int(rank), told


def check_gpus(num_ranks: int) -> None:
    """Raises ConfigError where so many ranks on this machine would have to share its GPUs."""
    if torch.cuda.is_available() and num_ranks > (count := torch.cuda.device_count()):
        told = f"{num_ranks} ranks need as many GPUs, but there are {count}; give {count} or fewer"
        raise ConfigError("parallel.num_processes", told)


def _travelling(error: Exception) -> Exception:
    """The error, or one that says the same where it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever a class does when it is written or read
        return RuntimeError(typed_line(error))
    return error
