"""FSDP2: each rank keeps a shard of the weights, gradients and optimizer state, through torch's `fully_shard`."""

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.optim import Optimizer

from hydrant.config.instantiate import instantiate_node
from hydrant.errors import ConfigError, first_line
from hydrant.files.plain_values import NotNegativeInt
from hydrant.models import repeated_blocks
from hydrant.optimizers.kernels import exceeds_distance, full_tensor, with_fastest_kernel
from hydrant.optimizers.scheduled_fields import config_prefix
from hydrant.training.distributed.world import NO_SYNC, NumRanks, Parallel, Timeout, World
from hydrant.training.prepare.build_optimizers import named_settings, step_once
from hydrant.training.trainer import Plan

_Dtype = Literal["float32", "bfloat16", "float16"]
_DTYPES = {None: None, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Fsdp(Parallel):
    """FSDP2: each repeated block of the task is one FSDP unit, and the remaining weights are another.

    A block is gathered only while it computes. With `replicate` above 1, several groups of ranks each hold all the
    weights, and gradients are averaged over the groups: hybrid sharding (HSDP).

    Args:
        num_processes, max_restarts, timeout_seconds, sync_batch_norm: as for `parallel=ddp`.
        replicate: groups of ranks that each hold all the weights; `auto`: one per node.
        reshard_after_forward: True: gather weights again for backward; False: keep them; `auto`: True for blocks only.
        param_dtype: dtype of gathered weights, norms too: `bfloat16` or `float16`, as in `precision`; None: as stored.
        reduce_dtype: dtype in which gradients are reduced; None: as computed.
        cpu_offload: True: keep weights, gradients and optimizer state in host memory (needs CUDA).
    """

    is_sharded = True

    def __init__(
        self,
        world: World,
        *,
        num_processes: NumRanks,
        max_restarts: NotNegativeInt,
        timeout_seconds: Timeout,
        sync_batch_norm: bool,
        replicate: int | Literal["auto"],
        reshard_after_forward: bool | Literal["auto"],
        param_dtype: _Dtype | None,
        reduce_dtype: _Dtype | None,
        cpu_offload: bool,
    ) -> None:
        super().__init__(world, sync_batch_norm=sync_batch_norm)
        del max_restarts, timeout_seconds  # read by the process that starts the ranks
        self._replicate: int | Literal["auto"] = replicate
        if replicate != "auto":
            self._check_divides(replicate, num_processes if world.world_size == 1 else world.world_size)
        self._param_dtype = _DTYPES[param_dtype]
        self._settings: dict[str, Any] = {
            "reshard_after_forward": None if reshard_after_forward == "auto" else reshard_after_forward,
            # Inputs are not cast, because `precision` already does that.
            "mp_policy": fsdp.MixedPrecisionPolicy(
                self._param_dtype, _DTYPES[reduce_dtype], cast_forward_inputs=False
            ),
            "offload_policy": fsdp.CPUOffloadPolicy() if cpu_offload else fsdp.OffloadPolicy(),
        }
        self._cached_mesh: tuple[object, DeviceMesh] | None = None  # and its process group

    def check(self, plan: Plan) -> None:
        config, task, compilation = plan.config, plan.task, plan.compilation
        if config["memory_format"] == "channels_last":
            message = "sharded weights are contiguous"
            raise ConfigError("memory_format", message, remedy="use memory_format=auto, or parallel=ddp")
        compute_dtype = plan.precision.autocast_dtype or plan.precision.loss_dtype
        if self._param_dtype not in (None, compute_dtype):
            message = f"precision computes in {str(compute_dtype).removeprefix('torch.')}"
            raise ConfigError("parallel.param_dtype", message, remedy="use that, or null")
        if plan.optimizers.leaves_parameters_out or plan.gathers_outputs:
            message = "optimizers of single losses or in turns, and losses of a batch, need unsharded weights"
            raise ConfigError("parallel", message, remedy="use parallel=ddp")
        blocks = repeated_blocks(task)
        compilation.check_sharded(blocks)
        _check_not_tied(task, blocks)
        for name, settings in named_settings(config).items():
            prefix = config_prefix(name)
            if settings["agc"] is not None:
                raise ConfigError(f"{prefix}agc", "needs unsharded weights", remedy="use max_grad_norm")
            _check_optimizer(f"{prefix}optimizer", settings["optimizer"], compilation.compiles_steps)

    def wrap(self, task: nn.Module) -> nn.Module:
        self.shard(task)
        task.register_forward_hook(_reshard_after_evaluation)
        return task

    def wrap_again(self, task: nn.Module) -> nn.Module:
        return task  # torch looks which shards train each time it gathers them

    def shard(self, module: nn.Module) -> None:
        settings: dict[str, Any] = {**self._settings, "mesh": self._mesh()}
        for block in repeated_blocks(module):
            fsdp.fully_shard(block, **settings)
        fsdp.fully_shard(module, **settings)

    @contextmanager
    def gathered(self, task: nn.Module) -> Generator[None]:
        """Gather the weights outside the blocks; each block gathers its own when it is called."""
        root = cast("fsdp.FSDPModule", task)
        root.unshard()
        try:
            yield
        finally:
            root.reshard()

    def gradient_sync(self, task: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        root = cast("fsdp.FSDPModule", task)
        root.set_requires_gradient_sync(is_last)
        root.set_is_last_backward(is_last)
        return NO_SYNC

    def _mesh(self) -> DeviceMesh:
        """Return the mesh of all ranks, (replicate, shard) or (shard,); created once per process group."""
        if self._cached_mesh is None or self._cached_mesh[0] is not dist.group.WORLD:
            num_ranks = self._world.world_size
            is_first_of_node = self._world.all_gather(self._world.local_rank == 0)
            num_replicas = sum(is_first_of_node) if self._replicate == "auto" else self._replicate
            self._check_divides(num_replicas, num_ranks)
            shape = (num_replicas, num_ranks // num_replicas) if num_replicas > 1 else (num_ranks,)
            names = ("replicate", "shard")[-len(shape) :]
            mesh = init_device_mesh(self._world.device.type, shape, mesh_dim_names=names)
            self._cached_mesh = dist.group.WORLD, mesh
        return self._cached_mesh[1]

    def _check_divides(self, num_replicas: int, num_ranks: int) -> None:
        if num_replicas < 1 or num_ranks % num_replicas:
            message = f"{num_replicas} replicas do not divide {num_ranks} rank(s)"
            raise ConfigError("parallel.replicate", message, remedy="give a number that does")


def _reshard_after_evaluation(task: nn.Module, batch: object, outcome: object) -> None:
    """Free gathered weights after a forward pass without gradients. Otherwise the backward pass frees them."""
    del batch, outcome
    if not torch.is_grad_enabled():
        for module in task.modules():
            if isinstance(module, fsdp.FSDPModule):
                module.reshard()


_SHAPES = ((130, 6), (5,), (3, 2, 2, 2), (1,), (36, 129))
"""Sizes that no number of ranks divides. Adafactor factors matrices of these sizes."""

_TOLERANCE = 0.1
"""The largest difference relative to the change in a few updates. Muon multiplies in bfloat16; an optimizer that uses
only its own shard differs by more."""


def _check_not_tied(task: nn.Module, blocks: list[nn.Module]) -> None:
    """Reject parameters shared between blocks or with the rest, because each owner would gather and free them."""
    inside = {id(module) for block in blocks for module in block.modules()}
    rest = [p for m in task.modules() if id(m) not in inside for p in m.parameters(recurse=False)]
    owners = (*(block.parameters() for block in blocks), rest)
    num_owners = Counter(id(p) for parameters in owners for p in dict.fromkeys(parameters))
    for name, parameter in task.named_parameters():
        if num_owners[id(parameter)] > 1:
            message = f"a block shares {name} with modules outside of it"
            raise ConfigError("parallel", message, remedy="use parallel=ddp")


def _check_optimizer(key: str, node: Mapping[str, Any], is_compiled: bool) -> None:
    """Make a few updates of small weights, unsharded and sharded, on the host, and compare them."""
    failure = f"{node['_target_'].rpartition('.')[2]} cannot update sharded weights"
    mesh, factory = init_device_mesh("cpu", (dist.get_world_size(),)), instantiate_node(node)
    build = factory if is_compiled else with_fastest_kernel(factory)
    try:
        expected = _changes(factory, lambda value: value)
        sharded = _changes(build, lambda value: distribute_tensor(value, mesh, [Shard(0)]))
    except Exception as error:  # DTensor raises anything
        reason = first_line(error) or type(error).__name__
        raise ConfigError(key, f"{failure} ({reason})", remedy="use parallel=ddp") from error
    for one, other in zip(expected, sharded, strict=True):
        if exceeds_distance(one, other, _TOLERANCE * float(one.norm())):
            difference = "they change differently from unsharded ones"
            raise ConfigError(key, f"{failure}: {difference}", remedy="use parallel=ddp")


def _changes(
    make_optimizer: Callable[[list[dict[str, Any]]], Optimizer], shard: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """Return the change of each weight in a few updates, as unsharded tensors."""
    generator = torch.Generator().manual_seed(0)
    initial, *updates = [[torch.randn(shape, generator=generator) for shape in _SHAPES] for _ in range(4)]
    parameters = [nn.Parameter(shard(value.clone())) for value in initial]
    optimizer = make_optimizer([{"params": parameters}])
    for gradients in updates:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = shard(gradient)
        step_once(optimizer)
    return [full_tensor(p.detach()) - start for p, start in zip(parameters, initial, strict=True)]
