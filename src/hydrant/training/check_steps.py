"""Checks, before anything starts, that each optimizer can train the weights of the task, and that its state can be
saved and restored. Each is tried on small stand-ins of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hydrant.config.instantiate import instantiate_node
from hydrant.errors import ConfigError, first_line
from hydrant.optimizers.scheduled_fields import config_prefix
from hydrant.training.build_optimizers import named_settings
from hydrant.training.checkpoint.tree import join, split
from hydrant.training.update import Optimizers, has_modes, needs_closure

_MAX_SIDE = 4
"""Sides of weights are at most this long in their stand-ins."""


def check_steps(
    config: Mapping[str, Any], task: nn.Module, optimizers: Optimizers, device: torch.device
) -> None:
    """Try a step of each optimizer, then save its state, restore it into another one, and try its step.

    Raises:
        ConfigError: an optimizer fails.
    """
    with_sparse = [module for module in task.modules() if getattr(module, "sparse", False) is True]
    sparse = {id(p) for module in with_sparse for p in module.parameters(recurse=False)}
    cuda_devices = [device] if device.type == "cuda" else []
    for name, entry in optimizers.entries.items():
        key, kind = f"{config_prefix(name)}optimizer", type(entry.optimizer).__name__
        if getattr(entry.optimizer, "is_second_order", False):  # as timm marks those that need create_graph
            message = f"{kind} needs second derivatives, which are not computed; choose another optimizer"
            raise ConfigError(key, message)
        make_optimizer = instantiate_node(named_settings(config)[name]["optimizer"])
        try:
            # Kron compiles its step, which takes half a minute.
            with torch.random.fork_rng(cuda_devices), torch.compiler.set_stance("force_eager"):
                _try_steps(make_optimizer, entry.optimizer.param_groups, sparse, device)
        except Exception as error:  # an optimizer raises anything
            reason = first_line(error) or type(error).__name__
            message = f"{kind} cannot train this model: {reason}; choose another optimizer"
            raise ConfigError(key, message) from error


def _try_steps(
    make_optimizer: Callable[[list[dict[str, Any]]], Optimizer],
    groups: Sequence[Mapping[str, Any]],
    sparse: Collection[int],
    device: torch.device,
) -> None:
    first, second = (
        make_optimizer([{**group, "params": _stand_ins(group, sparse, device)} for group in groups])
        for _ in range(2)
    )
    _step(first)
    tensors: dict[str, Tensor] = {}
    plain = split(first.state_dict(), tensors)
    second.load_state_dict(join(plain, tensors))
    _step(second)


def _stand_ins(group: Mapping[str, Any], sparse: Collection[int], device: torch.device) -> list[nn.Parameter]:
    """Return a small weight with a gradient for each kind of weight in the group. `sparse`: the `id` of those with
    sparse gradients.
    """
    kinds = dict.fromkeys(
        (tuple(min(side, _MAX_SIDE) for side in p.shape), id(p) in sparse) for p in group["params"]
    )
    stand_ins: list[nn.Parameter] = []
    for shape, is_sparse in kinds:
        stand_in = nn.Parameter(torch.ones(shape, device=device))
        gradient = torch.ones_like(stand_in)
        stand_in.grad = gradient.to_sparse(1) if is_sparse else gradient
        stand_ins.append(stand_in)
    return stand_ins


def _step(optimizer: Optimizer) -> None:
    if has_modes(optimizer):
        optimizer.train()  # type: ignore[attr-defined]
    closure = [lambda: torch.ones(())] if needs_closure(optimizer) else []
    optimizer.step(*closure)  # type: ignore[arg-type]  # returns a tensor, as LBFGS needs
