"""DistributedDataParallel: every rank holds the whole task, and gradients are averaged; buffers are equal on all ranks.

The collectives that a task calls in its forward are recorded, with whether torch.compile computes their gradient.
"""

import inspect
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase  # noqa: PLC2701  # what its layers share
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC2701  # has no public name

from hydrant.batch import tensors_of
from hydrant.errors import ConfigError, innermost
from hydrant.files.plain_values import NotNegativeInt
from hydrant.training.distributed.world import NO_SYNC, NumRanks, Parallel, Timeout, World


class Ddp(Parallel):
    """DistributedDataParallel: gradients are averaged over the ranks while backward runs.

    Args:
        num_processes: ranks that a plain `python train.py` starts on this machine; ignored under torchrun and srun.
        max_restarts: restarts of these ranks from the last checkpoint, after one of them died or hung.
        timeout_seconds: seconds without progress after which the run ends and names the rank that hangs.
        sync_batch_norm: True: batch norm statistics over all ranks (needs CUDA).
        bucket_cap_mb, gradient_as_bucket_view, static_graph, find_unused_parameters: arguments of
            `torch.nn.parallel.DistributedDataParallel`.
        split_muon: True: each rank orthogonalises its share of the matrices of `muon`, `normuon` or `torch_muon`.
    """

    def __init__(
        self,
        world: World,
        *,
        num_processes: NumRanks,
        max_restarts: NotNegativeInt,
        timeout_seconds: Timeout,
        sync_batch_norm: bool,
        bucket_cap_mb: float,
        gradient_as_bucket_view: bool,
        static_graph: bool,
        find_unused_parameters: bool,
        split_muon: bool,
    ) -> None:
        super().__init__(world, sync_batch_norm=sync_batch_norm)
        self._splits_muon = split_muon
        del num_processes, max_restarts, timeout_seconds  # read by the process that starts the ranks
        self._settings: dict[str, Any] = {
            "bucket_cap_mb": bucket_cap_mb,
            "gradient_as_bucket_view": gradient_as_bucket_view,
            "static_graph": static_graph,
            "find_unused_parameters": find_unused_parameters,
        }

    def check(self, plan: Any) -> None:
        if not self._splits_muon:
            return
        key = "parallel.split_muon"
        if not any(hasattr(optimizer, "split_step") for optimizer in plan.optimizers.whole.steps):
            message = "splits the work of Muon and its kin, which this run does not use"
            raise ConfigError(key, message, remedy="use false")
        if plan.compilation.compiles_steps:
            remedy = "use false, or compile.optimizer=false"
            raise ConfigError(key, "a compiled step cannot be split", remedy=remedy)

    def sharing_steps(self, make_step: Callable[..., Any]) -> Callable[..., Any]:
        if self._is_single or not self._splits_muon:
            return make_step

        def make(optimizer: Any, scheduled: Any) -> Any:
            split = getattr(optimizer, "split_step", None)
            return split(self._world) if split else make_step(optimizer, scheduled)

        return make

    def wrap(self, task: nn.Module) -> nn.Module:
        if self._is_single:
            return task
        from torch.nn.parallel import DistributedDataParallel

        devices = [self.device] if self.device.type == "cuda" else None
        # Newer versions of torch have another name.
        names = inspect.signature(DistributedDataParallel).parameters
        buffers = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
        settings: dict[str, Any] = self._settings | {buffers: False}  # `RankBuffers` does that
        return DistributedDataParallel(task, device_ids=devices, **settings)

    def gradient_sync(self, task: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        # With static_graph, DDP fails in any micro-step that does not reduce gradients.
        if self._is_single or not hasattr(task, "no_sync"):
            return NO_SYNC
        return NO_SYNC if is_last or self._settings["static_graph"] else cast("Any", task).no_sync()


_NAMESPACES = ("c10d", "_c10d_functional")
_PUBLIC_NAMES: dict[str, str] = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather_into_tensor",
}
"""The names of c10d's operators in torch.distributed, where the two differ."""


@dataclass(frozen=True)
class Collective:
    """One call of a collective."""

    name: str  # such as all_reduce
    location: str  # file:line of the caller
    changes_gradient: bool
    """It writes into a tensor that requires a gradient. Eager autograd does not see that write. torch.compile turns
    it into an operator with a backward, so it computes another gradient."""

    def __str__(self) -> str:
        return f"{self.name} at {self.location}"


class CallRecorder(TorchDispatchMode):
    """A context that records every collective in `collectives`. `derivative` is where a derivative is taken that can be
    differentiated again, but not by torch.compile, which knows those of torch.func alone; "" if there is none.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.collectives, self.derivative = list[Collective](), ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        schema = getattr(func, "_schema", None)  # a higher order operator has none
        namespace, _, operator = getattr(schema, "name", "").partition("::")
        if namespace in _NAMESPACES and not operator.startswith(("wait", "_wrap")):
            is_in_place, name = operator.endswith("_"), operator.rstrip("_")
            changes_gradient = (
                is_in_place and torch.is_grad_enabled() and any(t.requires_grad for t in tensors_of(args))
            )
            name = _PUBLIC_NAMES.get(name) or name
            self.collectives.append(Collective(name, _caller(), changes_gradient))
        elif torch.is_grad_enabled() and torch._C._current_graph_task_id() >= 0:
            self.derivative = self.derivative or _caller(left_out="_functorch")
        return func(*args, **(kwargs or {}))


def _caller(left_out: str = "\n") -> str:
    """Return file:line of the user's code that calls an operator; "" if a file on the way is one of `left_out`."""
    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_stack()[:-2]]
    file, line = innermost(frames)
    return "" if any(left_out in path for path, _ in frames) else f"{file}:{line}"


_STATISTICS = ("running_mean", "running_var")
_COUNT = "num_batches_tracked"


class RankBuffers:
    """Makes the buffers of a task equal on all ranks after every update. With one rank it does nothing.

    A single rank adds the statistics x of one micro-batch after the other to the running statistics r of a batch norm:
    r <- b * r + (1 - b) * x, with b = 1 - momentum. R ranks add R micro-batches at the same time, and each rank sees
    one of them. So the constructor sets the momentum to 1 - b**R: one micro-batch counts for R. Then the mean of r over
    the ranks, with weights in proportion to b**(R - 1 - rank), is what a single rank has, except for rounding, if a
    forward pass calls the module once. With momentum=None, which averages all micro-batches, the weights are equal.

    All other buffers get the values of rank 0, as in DDP.

    Args:
        task: the task on its device, with the momenta of a single rank.
        rank: this rank.
        num_ranks: the number of ranks, R.
    """

    def __init__(self, task: nn.Module, rank: int, num_ranks: int) -> None:
        modules: list[Any] = list(task.modules()) if num_ranks > 1 else []
        norms = [module for module in modules if _has_own_statistics(module)]
        self._statistics: list[Tensor] = [getattr(norm, name) for norm in norms for name in _STATISTICS]
        self._counts: list[Tensor] = [getattr(norm, _COUNT) for norm in norms]
        combined = {id(buffer) for buffer in (*self._statistics, *self._counts)}
        # A forward pass may assign a new tensor to a buffer, so the places are kept.
        places = [(module._buffers, name) for module in modules for name in module._buffers]
        self._others = [(buffers, name) for buffers, name in places if id(buffers[name]) not in combined]
        self._weights = self._set_momenta(norms, rank, num_ranks)
        self._counts_before = torch.empty(0)
        self._is_rank_zero = rank == 0

    def begin_update(self) -> None:
        """Note the numbers of batches before an update."""
        if self._counts:
            self._counts_before = torch.stack(self._counts)

    def end_update(self) -> None:
        """Make the buffers equal after an update. Every rank calls it."""
        if self._counts:
            self._combine_statistics()
        if self._others:
            buffers = [of_module[name] for of_module, name in self._others]
            self._copy_from_rank_zero([buffer for buffer in buffers if buffer is not None])

    def _set_momenta(self, norms: Sequence[Any], rank: int, num_ranks: int) -> Tensor:
        """Set the momenta for these ranks; return the weight of each statistic, then of each count, in float64."""
        weights: list[Tensor] = []
        for norm in norms:
            b = 1.0 if norm.momentum is None else 1.0 - norm.momentum
            powers = [b**n for n in range(num_ranks)]
            weight = powers[num_ranks - 1 - rank] / sum(powers)
            weights.append(torch.full((2 * norm.num_features,), weight, dtype=torch.float64))
        # momentum=None divides by the count, so it has to remain that of one rank.
        counts = [1.0 / num_ranks if norm.momentum is None else 1.0 for norm in norms]
        for norm in norms:
            if norm.momentum is not None:
                norm.momentum = 1.0 - (1.0 - norm.momentum) ** num_ranks
        device = self._statistics[0].device if norms else None
        return torch.cat([*weights, torch.tensor(counts, dtype=torch.float64)]).to(device)

    @torch.no_grad()
    def _combine_statistics(self) -> None:
        added = torch.stack(self._counts) - self._counts_before
        # In float64, a statistic that no rank has changed remains the same after rounding.
        flat = torch.cat([torch.cat([s.flatten() for s in self._statistics]).double(), added.double()])
        dist.all_reduce(flat.mul_(self._weights))
        *statistics, added = flat.split([*(s.numel() for s in self._statistics), len(self._counts)])
        _copy_all(self._statistics, statistics)
        _copy_all(self._counts, list((self._counts_before + added.round().long()).unbind()))

    @torch.no_grad()
    def _copy_from_rank_zero(self, buffers: list[Tensor]) -> None:
        if not buffers:
            return
        # As bytes, because backends lack some dtypes. Wide elements come first, so that all are aligned.
        buffers = sorted(buffers, key=lambda buffer: -buffer.element_size())
        flat = torch.cat([buffer.detach().reshape(-1).view(torch.uint8) for buffer in buffers])
        dist.broadcast(flat, src=0)
        if not self._is_rank_zero:
            parts = flat.split([buffer.nbytes for buffer in buffers])
            _copy_all(buffers, [p.view(b.dtype).view(b.shape) for b, p in zip(buffers, parts, strict=True)])


def uses_batch_statistics(task: nn.Module) -> bool:
    """Return whether a module normalizes by the statistics of the micro-batch of one rank."""
    norms = [m for m in task.modules() if isinstance(m, _BatchNorm) and not isinstance(m, nn.SyncBatchNorm)]
    return any(norm.training for norm in norms)


def _has_own_statistics(module: nn.Module) -> bool:
    """Return whether a norm tracks statistics of the samples of this rank only."""
    if not isinstance(module, _NormBase) or isinstance(module, nn.SyncBatchNorm):
        return False
    return all(getattr(module, name) is not None for name in (*_STATISTICS, _COUNT))


def _copy_all(targets: list[Tensor], values: Sequence[Tensor]) -> None:
    torch._foreach_copy_(targets, list(values))
