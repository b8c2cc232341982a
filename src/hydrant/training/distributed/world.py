"""The rank and the device of this process, which come from the launcher, never from the config; its collectives."""

import itertools
import logging
import os
import pickle
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, NoReturn, Self, TypeVar

import torch
import torch.distributed as dist
from annotated_types import Interval
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from hydrant.batch import Batch, Tensors, tensors_of, with_tensors
from hydrant.errors import ConfigError, DataError, RankDied, first_line, typed_line
from hydrant.signals import STOP_SIGNALS, interruptible
from hydrant.terminal.console import notice
from hydrant.training.distributed.env import read_number, set_torchrun_variables

T = TypeVar("T")

_EXTRA_SECONDS = 300.0  # after the watchdog's timeout, before a collective itself fails
_SILENT_SECONDS = 10.0  # of waiting for other ranks
STORE_SECONDS = 30.0
"""The timeout of an operation on the store."""


@dataclass
class Membership:
    """This process in its process group."""

    is_owner: bool  # it made the group, of several ranks
    has_failed: bool = False  # set it if the run failed here: the other ranks may still run


@dataclass(frozen=True)
class World:
    """This process among the ranks of its run, in torchrun's terms."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device

    @classmethod
    def from_launcher(cls) -> Self:
        """Read the variables of torchrun or srun. Without a launcher, this process is the only rank.

        Raises:
            ConfigError: a variable has no valid value.
        """
        set_torchrun_variables()
        rank, world_size = read_number("RANK", 0), read_number("WORLD_SIZE", 1)
        if rank >= world_size:
            remedy = "a launcher sets both: without one, unset RANK"
            raise ConfigError("RANK", needs=f"less than WORLD_SIZE={world_size}", got=rank, remedy=remedy)
        local_rank, device = read_number("LOCAL_RANK", 0), torch.device("cpu")
        if torch.cuda.is_available():
            # A launcher may show each rank only its own GPU, as `srun --gpus-per-task=1` does.
            device = torch.device("cuda", 0 if torch.cuda.device_count() == 1 else local_rank)
        return cls(rank, local_rank, world_size, device)

    @property
    def is_rank_zero(self) -> bool:
        return self.rank == 0

    def set_device(self) -> None:
        """Make `device` the current CUDA device."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    @contextmanager
    def process_group(self, timeout_seconds: float = 1800) -> Generator[Membership]:
        """Initialize the default process group. Inside another one, do nothing.

        Host tensors go through gloo, CUDA tensors of several ranks through NCCL. A single rank has a group of gloo
        alone, so that models which call collectives run on it too. A collective fails some minutes after
        `timeout_seconds`, because the watchdog first reports which rank hangs. While ranks wait for each other, Ctrl-C
        ends them. If the run fails, the group is not destroyed: end the process by `end_process`.

        Raises:
            ConfigError: this machine has fewer GPUs than ranks.
            RankDied: not all ranks come within the timeout.
        """
        if dist.is_initialized():
            yield Membership(is_owner=False)
            return
        check_gpus((self.device.index or 0) + 1)
        excepthook, membership = sys.excepthook, Membership(is_owner=self.world_size > 1)
        with interruptible() if self.world_size > 1 else nullcontext():
            self._init_process_group(timedelta(seconds=timeout_seconds + _EXTRA_SECONDS))
            try:
                yield membership
            finally:
                if not (membership.is_owner and membership.has_failed):  # else NCCL would wait for all ranks
                    dist.destroy_process_group()
                # torch wraps the hook at each initialization and never unwraps it.
                sys.excepthook = excepthook

    def _init_process_group(self, timeout: timedelta) -> None:
        if self.world_size == 1:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
            return
        self.set_device()  # before NCCL starts, which else opens a context on GPU 0 from every rank
        backend = "cpu:gloo,cuda:nccl" if self.device.type == "cuda" else "gloo"
        try:
            store = _meet(self.rank, self.world_size, timeout)
            dist.init_process_group(
                backend, store=store, rank=self.rank, world_size=self.world_size, timeout=timeout
            )
        except dist.DistError as error:
            place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']} (MASTER_ADDR, MASTER_PORT)"
            message = f"the {self.world_size} ranks did not meet at {place}: {first_line(error)}"
            raise RankDied(message) from error

    def on_rank_zero(self, function: Callable[[], T]) -> T | None:
        """Call `function` on rank 0 and return its result there, None elsewhere. Raise its error on every rank."""
        if self.world_size == 1:
            return function()
        result: T | None = None
        error: Exception | None = None
        if self.is_rank_zero:
            try:
                result = function()
            except Exception as raised:  # any error must end all ranks
                error = raised
        box = [None if error is None else _picklable(error)]
        dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        if box[0] is not None:
            raise error or box[0]
        return result

    def broadcast_from_rank_zero(self, function: Callable[[], T]) -> T:
        """Call `function` on rank 0 and return its result, or raise its error, on every rank."""
        box: list[Any] = [self.on_rank_zero(function)]
        if self.world_size > 1:
            dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
        return box[0]

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank."""
        if self.world_size == 1:
            return [value]
        box: list[Any] = [None] * self.world_size
        dist.all_gather_object(box, value)
        return box

    def first(self, value: T | None) -> T | None:
        """Return the value of the first rank that has one, on all ranks, so that they all go on in one way."""
        return next((of_rank for of_rank in self.all_gather(value) if of_rank is not None), None)

    def store(self, name: str) -> dist.Store:
        """Return the store of the rendezvous, over a new connection, with keys under `name`."""
        pool: Any = dist.distributed_c10d
        store = dist.PrefixStore(name, pool._get_default_store().clone())
        store.set_timeout(timedelta(seconds=STORE_SECONDS))
        return store

    def first_report(self, key: str, text: str) -> tuple[int, str]:
        """Return (rank, text) of the first rank that called this with `key`. Does not block."""
        report = f"{self.rank} {text}"
        if self.world_size > 1 and dist.is_initialized():
            with suppress(RuntimeError):  # the process that hosts the store has ended
                report = self.store("first").compare_set(key, "", report).decode()
        rank, _, first = report.partition(" ")
        return int(rank), first


def end_process(status: int) -> NoReturn:
    """End this process. If it has left a process group behind, skip its destructor, which waits for other ranks too."""
    if dist.is_initialized():
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


_meetings: dict[tuple[str, ...], dist.Store] = {}
"""The store by the launcher's variables. All groups of a process share it, because rank 0 can serve one store per
port."""


def _meet(rank: int, world_size: int, timeout: timedelta) -> dist.Store:
    """Return the store of the next group of this process; no other group uses this part of it.

    Raises:
        ConfigError: the launcher's variables are incomplete.
        DistError: the store does not answer within the timeout.
    """
    key = tuple(os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"))
    try:
        if key not in _meetings:
            # As if for one rank, else it waits in silence.
            store, _, _ = next(rendezvous("env://", rank, 1, timeout=timeout))
            # torchrun's agent keeps its store over restarts, and the store keeps the addresses of earlier ranks.
            store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
            _wait_for_ranks(store, rank, world_size, timeout)
            _meetings[key] = store
    except ValueError as error:  # a variable is missing or no number
        raise ConfigError("MASTER_ADDR", first_line(error), remedy="a launcher sets it") from error
    group_idx = _meetings[key].add(f"num_groups/{rank}", 1) - 1
    return dist.PrefixStore(f"group{group_idx}", _meetings[key])


def _wait_for_ranks(store: dist.Store, rank: int, world_size: int, timeout: timedelta) -> None:
    """Wait on rank 0 until all ranks have come. After some seconds, say which are missing, and how to train alone."""
    names = [f"rank/{other}" for other in range(world_size)]
    store.set(names[rank], "")
    limit = time.monotonic() + _SILENT_SECONDS
    while rank == 0 and not store.check(names):
        if time.monotonic() < limit:  # not by a wait with this timeout, of which torch warns
            time.sleep(0.05)
            continue
        missing = [name.partition("/")[2] for name in names if not store.check([name])]
        alone = "SLURM_STEP_NUM_TASKS=1" if "SLURM_STEP_NUM_TASKS" in os.environ else "env -u RANK"
        waiting = f"waiting for {len(missing)} of {world_size} ranks: {', '.join(missing[:20])}"
        notice(f"{waiting}; to train without them, write {alone} before the command")
        store.wait(names, timeout)


def check_gpus(num_ranks: int) -> None:
    """Raise ConfigError if this machine has GPUs, but fewer than `num_ranks`."""
    if torch.cuda.is_available() and num_ranks > (count := torch.cuda.device_count()):
        message = f"{num_ranks} ranks need as many GPUs, but there are {count}"
        raise ConfigError("parallel.num_processes", message, remedy=f"give {count} or fewer")


def _picklable(error: Exception) -> Exception:
    """Return the error, or a RuntimeError with its message if it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # pickling runs the code of the class, which raises anything
        return RuntimeError(typed_line(error))
    return error


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
    """

    is_sharded = False
    """Each rank holds only its shard of the weights."""

    def __init__(self, world: World, *, sync_batch_norm: bool = False) -> None:
        self._world = world
        self._is_single = world.world_size == 1
        self._sync_batch_norm = sync_batch_norm
        self.device = world.device

    def check(self, plan: Any) -> None:
        """Reject settings of a `Plan` that fail, or give wrong results, with these ranks. All ranks call it.

        Raises:
            ConfigError: names the key to change.
        """

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

    def sharing_steps(self, make_step: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that returns the step of an optimizer as `make_step` does, or one that the ranks share."""
        return make_step

    def gradient_sync(self, task: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        """Return the context of one micro-step. Ranks reduce gradients in the last micro-step of an update."""
        del task, is_last
        return NO_SYNC

    def all_reduce(self, values: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place."""
        if not self._is_single:
            dist.all_reduce(values)
        return values

    def all_gather(self, tree: Tensors) -> list[Tensors]:
        """Return the tensors of every rank, by rank. They have the same shapes on all ranks."""
        if self._is_single:
            return [tree]
        columns = list[list[Tensor]]()
        for tensor in tensors_of(tree):
            columns.append([torch.empty_like(tensor) for _ in range(self._world.world_size)])
            dist.all_gather(columns[-1], tensor.contiguous())
        return [with_tensors(tree, of_rank) for of_rank in zip(*columns, strict=True)]

    def with_first_weights(self, task: nn.Module) -> nn.Module:
        """Return the task itself, with the weights of rank 0 on all ranks."""
        for parameter in () if self._is_single else task.parameters():
            dist.broadcast(parameter.detach(), src=0)
        return task

    def average_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Average gradients over all ranks, in place. One that a rank lacks is 0 there."""
        if self._is_single:
            return
        # On the host: no rank waits for its device.
        counts = torch.tensor([int(p.grad is not None) for p in parameters])
        dist.all_reduce(counts)
        used = [p for p, count in zip(parameters, counts.tolist(), strict=True) if count]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in used]
        for parameter, gradient in zip(used, gradients, strict=True):
            parameter.grad = gradient
        for key in dict.fromkeys((g.dtype, g.is_sparse) for g in gradients):
            alike = [g for g in gradients if (g.dtype, g.is_sparse) == key]
            if key[1]:
                for gradient in alike:
                    self.all_reduce(gradient).div_(dist.get_world_size())
                continue
            flat = self.all_reduce(torch.cat([g.flatten() for g in alike])).div_(dist.get_world_size())
            for gradient, part in zip(alike, flat.split([g.numel() for g in alike]), strict=True):
                gradient.copy_(part.view_as(gradient))

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
