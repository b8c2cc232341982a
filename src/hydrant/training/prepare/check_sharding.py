"""Checks that the parts of a run work with sharded weights. Optimizers are tried; other settings are known to fail."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.optim import Optimizer

from hydrant.config.instantiate import instantiate_node
from hydrant.errors import ConfigError, first_line
from hydrant.models.small import repeated_blocks
from hydrant.optimizers.clipping import exceeds_distance, full_tensor
from hydrant.optimizers.kernels import with_fastest_kernel
from hydrant.optimizers.scheduled_fields import config_prefix
from hydrant.training.compile.base import Compilation
from hydrant.training.distributed.base import Parallel
from hydrant.training.precision import Precision
from hydrant.training.prepare.build_optimizers import named_settings
from hydrant.training.prepare.check_steps import make_step
from hydrant.training.update import Optimizers

_SHAPES = ((130, 6), (5,), (3, 2, 2, 2), (1,), (36, 129))
"""Sizes that no number of ranks divides. Adafactor factors matrices of these sizes."""

_TOLERANCE = 0.1
"""The largest difference relative to the change in a few updates. Muon multiplies in bfloat16; an optimizer that uses
only its own shard differs by more."""


def check_sharding(
    config: Mapping[str, Any],
    task: nn.Module,
    parallel: Parallel,
    precision: Precision,
    compilation: Compilation,
    optimizers: Optimizers,
) -> None:
    """Reject settings that fail, or give wrong results, with sharded weights. All ranks call it.

    Raises:
        ConfigError: names the key to change.
    """
    compute_dtype = precision.autocast_dtype or precision.loss_dtype
    if parallel.param_dtype not in (None, compute_dtype):
        message = f"precision computes in {str(compute_dtype).removeprefix('torch.')}"
        raise ConfigError("parallel.param_dtype", message, remedy="use that, or null")
    if optimizers.retains_graph:
        message = "optimizers that follow single losses need unsharded weights"
        raise ConfigError("parallel", message, remedy="use parallel=ddp")
    if compilation.reuses_memory:
        raise ConfigError(
            "compile.mode", "CUDA graphs need weights that stay in place", remedy="use compile=default"
        )
    blocks = repeated_blocks(task)
    if blocks and compilation.is_on and config["compile"]["scope"] != "blocks":
        message = "blocks that are sharded one by one are compiled one by one"
        raise ConfigError("compile.scope", message, remedy="use compile.scope=blocks")
    _check_not_tied(task, blocks)
    for name, settings in named_settings(config).items():
        if settings["agc"] is not None:
            raise ConfigError(
                f"{config_prefix(name)}agc", "needs unsharded weights", remedy="use max_grad_norm"
            )
        _check_optimizer(f"{config_prefix(name)}optimizer", settings["optimizer"], compilation.compiles_steps)


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
        make_step(optimizer)
    return [full_tensor(p.detach()) - start for p, start in zip(parameters, initial, strict=True)]
