"""The collectives of a run's ranks. With one rank there is nothing to do."""

import itertools
from collections.abc import Generator, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated

import torch
import torch.distributed as dist
from annotated_types import Interval
from torch import Tensor, nn

from hydrant.batch import Batch
from hydrant.errors import ConfigError, DataError
from hydrant.signals import STOP_SIGNALS
from hydrant.training.distributed.world import World

NumRanks = Annotated[int, Interval(ge=1, le=1024)]
"""Ranks on one machine; each needs some 300 MB."""
Timeout = Annotated[float, Interval(gt=0, le=3e7)]
"""Seconds, of at most a year."""

NO_SYNC = nullcontext()
"""The context of a micro-step that needs no other rank."""

SINGLE_RANK = {"_target_": f"{__name__}.Parallel", "_partial_": True}
"""The config group `parallel` of a process that loads a run alone, however many ranks train it."""


class Parallel:
    """The collectives of a run. Subclasses wrap or shard the task; this class leaves it as it is.

    The builder calls `parallel(world)`.

    Args:
        sync_batch_norm: compute batch norm statistics over all ranks; needs CUDA.

    Raises:
        ConfigError: `sync_batch_norm` is true without CUDA.
    """

    is_sharded = False
    """Each rank holds only its shard of the weights."""
    splits_muon = False
    """The ranks share the work of an optimizer that orthogonalises matrices."""
    param_dtype: torch.dtype | None = None
    """The dtype in which sharded weights are gathered; None: the one in which they are stored."""

    def __init__(self, world: World, *, sync_batch_norm: bool = False) -> None:
        if sync_batch_norm and world.device.type != "cuda":
            raise ConfigError(
                "parallel.sync_batch_norm", "torch's SyncBatchNorm needs CUDA", remedy="use false"
            )
        self._world = world
        self._is_single = world.world_size == 1
        self._sync_batch_norm = sync_batch_norm
        self.device = world.device

    def prepare(self, task: nn.Module) -> nn.Module:
        """Return the task with batch norms converted if needed. Call it before the task is copied and compiled."""
        if not self._sync_batch_norm:
            return task
        # torch's own conversion loses the activations inside timm's layers.
        from timm.layers.norm_act import convert_sync_batchnorm

        return convert_sync_batchnorm(task)

    def shard(self, module: nn.Module) -> None:
        """Shard a module's weights over the ranks in place, if `wrap` shards those of the task."""

    def wrap(self, task: nn.Module) -> nn.Module:
        """Return the module that the loop calls. It is the outermost wrapper, applied after compilation."""
        return task

    def gathered(self, task: nn.Module) -> AbstractContextManager[None]:
        """Return a context in which parts of the task may be called alone, without the hooks of the task itself."""
        del task
        return nullcontext()

    def wrap_again(self, task: nn.Module) -> nn.Module:
        """Return the module that the loop calls, after other weights of the wrapped task train than before."""
        return self.wrap(task)

    def gradient_sync(self, task: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        """Return the context of one micro-step. Ranks reduce gradients in the last micro-step of an update."""
        del task, is_last
        return NO_SYNC

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place."""
        if not self._is_single:
            dist.all_reduce(values)
        return values

    def all_reduce_targets(
        self, num_targets: int | Tensor, signum: int | None
    ) -> tuple[int | Tensor, int | None]:
        """Return the number of targets on all ranks, and a stop signal that any rank received."""
        if self._is_single:
            return num_targets, signum
        if isinstance(num_targets, Tensor):  # stays on the device
            return self.all_reduce(num_targets), self.all_reduce_targets(0, signum)[1]
        counts = torch.tensor([num_targets, *(int(signum == stop) for stop in STOP_SIGNALS)])
        dist.all_reduce(counts)  # a host tensor goes through gloo, so no rank waits for its device
        total, *received = counts.tolist()
        return total, next((stop for stop, count in zip(STOP_SIGNALS, received, strict=True) if count), None)

    def pad_batches(self, batches: Iterable[Batch]) -> Generator[tuple[int, Batch, bool]]:
        """Yield (index among the batches of all ranks, batch, whether it counts), equally often on every rank.

        A rank that runs out of batches repeats its last one, because the model may call collectives.

        Raises:
            DataError: some rank has no batch at all; raised on all ranks.
        """
        last: Batch | None = None
        iterator, num_ranks = iter(batches), self._world.world_size
        for batch_idx in itertools.count(self._world.rank, num_ranks):
            batch = next(iterator, None)
            num_with_batch = int(self.all_reduce(torch.tensor(int(batch is not None))))
            last = last if batch is None else batch
            if batch_idx < num_ranks and num_with_batch < num_ranks:
                where = f"on {num_ranks - num_with_batch} of {num_ranks} rank(s)"
                message = f"no validation sample can be read {where}"
                raise DataError(message, remedy="repair the damaged files")
            if not num_with_batch:
                return
            assert last is not None  # the first round raised otherwise
            yield batch_idx, last, batch is not None


class Single(Parallel):
    """One process on one device.

    Raises:
        ConfigError: there are several ranks.
    """

    def __init__(self, world: World, *, num_processes: NumRanks) -> None:
        super().__init__(world)
        for count, origin in ((num_processes, "configured"), (world.world_size, "started by the launcher")):
            if count != 1:
                message = f"{count} ranks are {origin}, but parallel=single runs one"
                raise ConfigError("parallel", message, remedy="use parallel=ddp")
