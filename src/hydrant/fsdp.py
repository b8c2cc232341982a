"""Every rank keeps a share of the weights, of their gradients and of the optimizer's state: torch's `fully_shard`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from hydrant.compilation.scopes import repeated
from hydrant.distributed import World
from hydrant.errors import ConfigError, unknown_name
from hydrant.parallel import Ranks

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Fsdp(Ranks):
    """FSDP2: each repeated block of the task is sharded for itself, what is left as one; a model without blocks whole.

    A block is gathered when it computes, and no longer. With `replicate` there are several such groups of ranks, each
    with all of the weights, whose gradients are averaged: hybrid sharding.

    Args:
        num_processes, max_restarts, timeout_seconds, sync_batch_norm: as of `parallel=ddp`.
        replicate: how many times the ranks together hold the weights; `auto` is once a node.
        reshard_after_forward: `true` lets go of gathered weights after the forward pass, and gathers them again for
            the backward pass; `false` keeps them in between; `auto` keeps those of no block.
        param_dtype: what weights are gathered and computed in, `bfloat16` or `float16`, which `precision` must
            compute in too: norms and biases as well. None is what they are kept in.
        reduce_dtype: what gradients are summed in; None is what they are computed in.
        cpu_offload: keep weights, gradients and the optimizer's state in the host's memory; on CUDA.
    """

    is_sharded = True

    def __init__(
        self,
        world: World,
        *,
        num_processes: int,
        max_restarts: int,
        timeout_seconds: float,
        sync_batch_norm: bool,
        replicate: int | Literal["auto"],
        reshard_after_forward: bool | Literal["auto"],
        param_dtype: str | None,
        reduce_dtype: str | None,
        cpu_offload: bool,
    ) -> None:
        super().__init__(world, sync_batch_norm=sync_batch_norm)
        del max_restarts, timeout_seconds  # for who starts the ranks
        if cpu_offload and world.device.type == "cpu":
            raise ConfigError(
                "parallel.cpu_offload", "is for CUDA; here all is in the host's memory. Use false"
            )
        self._replicate: int | Literal["auto"] = replicate
        if replicate != "auto":
            self._check_divides(replicate, num_processes if world.world_size == 1 else world.world_size)
        self.param_dtype = _dtype("param_dtype", param_dtype)
        self._settings: dict[str, Any] = {
            "reshard_after_forward": None if reshard_after_forward == "auto" else reshard_after_forward,
            # Batches stay as they are: precision says what is computed in.
            "mp_policy": MixedPrecisionPolicy(
                self.param_dtype, _dtype("reduce_dtype", reduce_dtype), cast_forward_inputs=False
            ),
            "offload_policy": CPUOffloadPolicy() if cpu_offload else OffloadPolicy(),
        }
        self._mesh: tuple[object, DeviceMesh] | None = None

    def wrap(self, task: nn.Module) -> nn.Module:
        self.shard(task)
        task.register_forward_hook(_reshard_after_evaluation)
        return task

    def shard(self, module: nn.Module) -> None:
        settings: dict[str, Any] = {**self._settings, "mesh": self._ranks()}
        for block in units(module):
            fully_shard(block, **settings)
        fully_shard(module, **settings)

    def gradient_sync(self, task: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        root = cast("FSDPModule", task)
        root.set_requires_gradient_sync(is_last)
        root.set_is_last_backward(is_last)
        return nullcontext()

    def _ranks(self) -> DeviceMesh:
        """The ranks, by replica and share; made once for each process group."""
        if self._mesh is None or self._mesh[0] is not dist.group.WORLD:
            num_ranks = self._world.world_size
            is_first = self._world.gather(self._world.local_rank == 0)  # of its node
            num_replicas = sum(is_first) if self._replicate == "auto" else self._replicate
            self._check_divides(num_replicas, num_ranks)
            shape = (num_replicas, num_ranks // num_replicas) if num_replicas > 1 else (num_ranks,)
            names = ("replicate", "shard")[-len(shape) :]
            mesh = init_device_mesh(self._world.device.type, shape, mesh_dim_names=names)
            self._mesh = dist.group.WORLD, mesh
        return self._mesh[1]

    def _check_divides(self, num_replicas: int, num_ranks: int) -> None:
        if num_replicas < 1 or num_ranks % num_replicas:
            told = f"{num_replicas} copies of the weights do not divide {num_ranks} rank(s); give a number that does"
            raise ConfigError("parallel.replicate", told)


def units(module: nn.Module) -> Iterator[nn.Module]:
    """The blocks that are sharded each for itself; what they leave is the unit of the module itself."""
    yield from dict.fromkeys(repeated(module))


def _reshard_after_evaluation(task: nn.Module, batch: object, outcome: object) -> None:
    """A backward pass lets go of all that was gathered. Without one, this does."""
    del batch, outcome
    if not torch.is_grad_enabled():
        for module in task.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def _dtype(key: str, name: str | None) -> torch.dtype | None:
    if name is not None and name not in _DTYPES:
        raise unknown_name(f"parallel.{key}", "dtype", name, _DTYPES)
    return None if name is None else _DTYPES[name]
