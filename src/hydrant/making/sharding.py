"""What does not go with weights of which each rank has a share alone is refused, by what it does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.optim import Optimizer

from hydrant.compilation import Compilation
from hydrant.errors import ConfigError, first_line
from hydrant.fsdp import units
from hydrant.making import make_node
from hydrant.making.optimization import named_settings
from hydrant.norms import differs, whole
from hydrant.optimization import Optimization, needs_closure
from hydrant.parallel import Parallel
from hydrant.precision import Precision
from hydrant.scheduling import config_prefix

_SHAPES = ((130, 6), (5,), (3, 2, 2, 2), (1,), (36, 129))
"""Also such as no number of ranks divides, and matrices large enough for Adafactor to factor."""

_TOLERANCE = 0.1
"""Of the change in a few updates. Muon's products are in bfloat16; what looks at shares alone is further off."""


def check_sharding(
    config: Mapping[str, Any],
    task: nn.Module,
    parallel: Parallel,
    precision: Precision,
    compilation: Compilation,
    optimization: Optimization,
) -> None:
    """Refuse what cannot be, or would compute something else, with sharded weights. All ranks call it.

    Raises:
        ConfigError: the key to change.
    """
    computed_in = precision.autocast_dtype or torch.float32
    if parallel.param_dtype not in (None, computed_in):
        told = f"precision computes in {str(computed_in).removeprefix('torch.')}; use that, or null"
        raise ConfigError("parallel.param_dtype", told)
    if optimization.retains_graph:
        told = "losses that optimizers follow one by one need whole weights; use parallel=ddp"
        raise ConfigError("parallel", told)
    if compilation.reuses_memory:
        raise ConfigError("compile.mode", "CUDA graphs need weights that stay in place; use compile=default")
    blocks = list(units(task))
    if blocks and compilation.is_on and config["compile"]["scope"] != "blocks":
        told = (
            "blocks that are gathered each for itself are compiled each for itself; use compile.scope=blocks"
        )
        raise ConfigError("compile.scope", told)
    _refuse_tied(task, blocks)
    for name, settings in named_settings(config).items():
        if settings["agc"] is not None:
            raise ConfigError(f"{config_prefix(name)}agc", "needs whole weights; use max_grad_norm")
        _check_optimizer(f"{config_prefix(name)}optimizer", settings["optimizer"])


def _refuse_tied(task: nn.Module, blocks: list[nn.Module]) -> None:
    """Each of two units would gather and release what they share."""
    inside = {id(module) for block in blocks for module in block.modules()}
    rest = [p for m in task.modules() if id(m) not in inside for p in m.parameters(recurse=False)]
    owned = Counter(id(p) for own in (*(b.parameters() for b in blocks), rest) for p in dict.fromkeys(own))
    for name, parameter in task.named_parameters():
        if owned[id(parameter)] > 1:
            raise ConfigError(
                "parallel", f"a block shares {name} with what is outside of it; use parallel=ddp"
            )


def _check_optimizer(key: str, node: Mapping[str, Any]) -> None:
    """A few updates of small weights, whole and sharded, on the host."""
    what = f"{node['_target_'].rpartition('.')[2]} cannot update weights of which each rank has a share"
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    try:
        plain = _changes(make_node(node), lambda value: value)
        sharded = _changes(make_node(node), lambda value: distribute_tensor(value, mesh, [Shard(0)]))
    except Exception as error:  # DTensor raises anything
        raise ConfigError(
            key, f"{what} ({first_line(error) or type(error).__name__}); use parallel=ddp"
        ) from error
    for one, other in zip(plain, sharded, strict=True):
        if differs(one, other, _TOLERANCE * float(one.norm())):
            raise ConfigError(key, f"{what}: they change otherwise than whole ones; use parallel=ddp")


def _changes(
    make: Callable[[list[nn.Parameter]], Optimizer], spread: Callable[[Tensor], Tensor]
) -> list[Tensor]:
    """By how much each of some weights is changed, in one piece."""
    generator = torch.Generator().manual_seed(0)
    first, *gradients = [[torch.randn(shape, generator=generator) for shape in _SHAPES] for _ in range(4)]
    parameters = [nn.Parameter(spread(value.clone())) for value in first]
    optimizer: Any = make(parameters)
    for given in gradients:
        for parameter, gradient in zip(parameters, given, strict=True):
            parameter.grad = spread(gradient)
        optimizer.step(*([lambda: torch.tensor(1.0)] if needs_closure(optimizer) else []))
    return [whole(p.detach()) - start for p, start in zip(parameters, first, strict=True)]
