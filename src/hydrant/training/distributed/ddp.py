"""DistributedDataParallel: every rank holds the whole task, and gradients are averaged."""

from __future__ import annotations

import inspect
import re
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, cast

from torch import nn

from hydrant.errors import HydrantError, first_few
from hydrant.training.distributed.base import NO_SYNC, Parallel
from hydrant.training.distributed.world import World

_REMEDIES = {
    "Expected to have finished reduction": (
        "in an update, no loss depends on {names}; "
        "add parallel.find_unused_parameters=true, or leave them out of the model"
    ),
    "Your training graph has changed": (
        "the parameters that get gradients differ between updates; write parallel.static_graph=false"
    ),
    "Expected to mark a variable ready only once": (
        "a parameter gets its gradient twice in one backward, such as by activation checkpointing; "
        "if that is so in each update, add parallel.static_graph=true"
    ),
}
"""The beginning of an error of DistributedDataParallel: what to write here. {names} are the unused parameters."""
_SHOWN_NAMES = 5


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
        num_processes: int,
        max_restarts: int,
        timeout_seconds: float,
        sync_batch_norm: bool,
        bucket_cap_mb: float,
        gradient_as_bucket_view: bool,
        static_graph: bool,
        find_unused_parameters: bool,
        split_muon: bool,
    ) -> None:
        super().__init__(world, sync_batch_norm=sync_batch_norm)
        self.splits_muon = split_muon
        del num_processes, max_restarts, timeout_seconds  # read by the process that starts the ranks
        self._settings: dict[str, Any] = {
            "bucket_cap_mb": bucket_cap_mb,
            "gradient_as_bucket_view": gradient_as_bucket_view,
            "static_graph": static_graph,
            "find_unused_parameters": find_unused_parameters,
        }

    def wrap(self, task: nn.Module) -> nn.Module:
        if self._is_single:
            return task
        from torch.nn.parallel import DistributedDataParallel

        devices = [self.device] if self.device.type == "cuda" else None
        settings: dict[str, Any] = self._settings | {buffer_setting(): False}  # `RankBuffers` does that
        return DistributedDataParallel(task, device_ids=devices, **settings)

    def gradient_sync(self, task: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        # With static_graph, DDP fails in any micro-step that does not reduce gradients.
        if self._is_single:
            return NO_SYNC
        is_synced = is_last or self._settings["static_graph"]
        return explained(task, NO_SYNC if is_synced else cast("Any", task).no_sync())


@contextmanager
def explained(task: nn.Module, context: AbstractContextManager[None]) -> Generator[None]:
    """Enter a context, and name the config key in errors of DistributedDataParallel about its arguments.

    Raises:
        HydrantError: such an error.
    """
    try:
        with context:
            yield
    except RuntimeError as error:
        remedy = next((remedy for text, remedy in _REMEDIES.items() if str(error).startswith(text)), None)
        if remedy is None:
            raise
        message = f"parallel: {remedy.format(names=_unused_names(task, str(error)))}"
        raise HydrantError(message) from error


def _unused_names(task: nn.Module, message: str) -> str:
    """Return the names of the parameters whose indices a message of DistributedDataParallel lists."""
    names = [name.removeprefix("module.") for name, p in task.named_parameters() if p.requires_grad]
    found = re.search(r"did not receive grad for rank \d+: ([\d ]+)", message)
    unused = [names[int(index)] for index in found[1].split()] if found else ["some parameters"]
    return first_few(unused, _SHOWN_NAMES)


def buffer_setting() -> str:
    """Return the argument of DistributedDataParallel that says whether it copies buffers from rank 0."""
    from torch.nn.parallel import DistributedDataParallel

    is_new = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
    return "forward_sync_buffers" if is_new else "broadcast_buffers"
