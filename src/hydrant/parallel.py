"""How a task is spread over ranks. On one rank there is nothing to spread."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hydrant.batch import Batch
from hydrant.distributed import World
from hydrant.errors import ConfigError, DataError
from hydrant.signals import STOPPING

_AT_ONCE = nullcontext()


class Parallel(Protocol):
    """Spreads a task over the ranks of a run. Built as `parallel(world)`."""

    device: torch.device
    is_sharded: bool  # whether a rank holds a share of the weights alone
    param_dtype: torch.dtype | None  # what they are gathered in then; None is what they are kept in

    def prepare(self, task: nn.Module) -> nn.Module:
        """The task with the layers that several ranks need; before it is copied and compiled."""
        ...

    def wrap(self, task: nn.Module) -> nn.Module:
        """The task as the loop calls it; the outermost wrapper, after compilation."""
        ...

    def shard(self, module: nn.Module) -> None:
        """Leave a rank its share of a module's weights, in place, as `wrap` does of a task's; or all of them."""
        ...

    def gradient_sync(self, task: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        """The context of one micro-step: ranks exchange gradients in the last one of an update."""
        ...

    def sum(self, values: Tensor) -> Tensor:
        """Add a tensor over the ranks."""
        ...

    def agree(self, num_targets: int, signum: int | None) -> tuple[int, int | None]:
        """The targets of all ranks, and a signal that asked any of them to stop."""
        ...

    def in_turn(self, batches: Iterable[Batch]) -> Iterable[tuple[int, Batch, bool]]:
        """A rank's batches: its number among those of all ranks, the batch, and whether it counts.

        As many on every rank, for a model may call collectives.

        Raises:
            DataError: on all ranks, where one has no batch at all.
        """
        ...

    def share_buffers(self, task: nn.Module) -> None:
        """Give every rank the buffers of rank 0: what it evaluates and saves."""
        ...


class Ranks:
    """What ranks do together, however a task is spread over them; nothing where there is one."""

    is_sharded = False
    param_dtype: torch.dtype | None = None

    def __init__(self, world: World, *, sync_batch_norm: bool = False) -> None:
        if sync_batch_norm and world.device.type != "cuda":
            raise ConfigError("parallel.sync_batch_norm", "torch's SyncBatchNorm needs CUDA; use false")
        self._world = world
        self._is_one = world.world_size == 1
        self._syncs_batch_norm = sync_batch_norm
        self.device = world.device

    def prepare(self, task: nn.Module) -> nn.Module:
        if not self._syncs_batch_norm:
            return task
        from timm.layers.norm_act import convert_sync_batchnorm  # torch's own loses the activation in timm's

        return convert_sync_batchnorm(task)

    def shard(self, module: nn.Module) -> None: ...

    def wrap(self, task: nn.Module) -> nn.Module:
        return task

    def gradient_sync(self, task: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        return _AT_ONCE

    def sum(self, values: Tensor) -> Tensor:
        if not self._is_one:
            dist.all_reduce(values)
        return values

    def agree(self, num_targets: int, signum: int | None) -> tuple[int, int | None]:
        if self._is_one:
            return num_targets, signum
        told = torch.tensor([num_targets, *(int(signum == known) for known in STOPPING)])
        dist.all_reduce(told)  # by gloo: the host waits for the other hosts, not for a device
        total, *asked = told.tolist()
        return total, next((known for known, count in zip(STOPPING, asked, strict=True) if count), None)

    def in_turn(self, batches: Iterable[Batch]) -> Generator[tuple[int, Batch, bool]]:
        last: Batch | None = None
        ahead, num_ranks = iter(batches), self._world.world_size
        for batch_idx in itertools.count(self._world.rank, num_ranks):
            batch = next(ahead, None)
            num_with_one = int(self.sum(torch.tensor(int(batch is not None))))
            last = last if batch is None else batch
            if batch_idx < num_ranks and num_with_one < num_ranks:
                where = f"on {num_ranks - num_with_one} of {num_ranks} rank(s)"
                raise DataError(f"no validation sample can be read {where}; repair what is damaged")
            if not num_with_one:
                return
            assert last is not None  # else it would have been refused
            yield batch_idx, last, batch is not None

    def share_buffers(self, task: nn.Module) -> None:
        if not self._is_one:
            for buffer in task.buffers():
                dist.broadcast(buffer, src=0)


class Single(Ranks):
    """One process, one device."""

    def __init__(self, world: World, *, num_processes: int) -> None:
        super().__init__(world)
        for given, who in ((num_processes, "asked for"), (world.world_size, "started by the launcher")):
            if given != 1:
                told = f"{given} ranks are {who}, but this option is one; use parallel=ddp"
                raise ConfigError("parallel", told)


class Ddp(Ranks):
    """DistributedDataParallel: every rank holds the whole task, and gradients are averaged while backward runs.

    Args:
        num_processes: ranks that a plain `python train.py` starts on this machine; a launcher's own count goes before.
        max_restarts: how often ranks that were started so are started again from the last checkpoint when one dies.
        timeout_seconds: how long nothing may move before the rank that hangs is named and all end.
        sync_batch_norm: take the statistics of batch norms over all ranks; on CUDA.
        bucket_cap_mb, gradient_as_bucket_view, static_graph, find_unused_parameters: DistributedDataParallel's own.
    """

    def __init__(
        self,
        world: World,
        *,
        num_processes: int,
        max_restarts: int,
        timeout_seconds: float,
        sync_batch_norm: bool,
        bucket_cap_mb: float,
        gradient_as_bucket_view: bool,
        static_graph: bool,
        find_unused_parameters: bool,
    ) -> None:
        super().__init__(world, sync_batch_norm=sync_batch_norm)
        del num_processes, max_restarts, timeout_seconds  # for who starts the ranks
        self._settings: dict[str, Any] = {
            "bucket_cap_mb": bucket_cap_mb,
            "gradient_as_bucket_view": gradient_as_bucket_view,
            "static_graph": static_graph,
            "find_unused_parameters": find_unused_parameters,
        }

    def wrap(self, task: nn.Module) -> nn.Module:
        if self._is_one:
            return task
        from torch.nn.parallel import DistributedDataParallel

        devices = [self._world.device] if self._world.device.type == "cuda" else None
        return DistributedDataParallel(task, device_ids=devices, **self._settings)

    def gradient_sync(self, task: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        # A static graph is learnt from micro-steps that exchange gradients: torch fails at any other.
        exchanges = is_last or self._is_one or self._settings["static_graph"]
        return _AT_ONCE if exchanges else cast("Any", task).no_sync()


ALONE = {"_target_": f"{__name__}.Ranks", "_partial_": True}
"""The group `parallel` where a run is looked at by one rank, however many train it."""
