"""Checks, before anything starts, that each optimizer can train the weights of the task, and that its state can be
saved and restored. Each is tried on small stand-ins of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hydrant.config.instantiate import instantiate_node
from hydrant.errors import ConfigError, first_line
from hydrant.optimizers.kinds import has_modes, needs_closure
from hydrant.optimizers.param_groups import sparse_parameters
from hydrant.optimizers.scheduled_fields import config_prefix
from hydrant.training.checkpoint.tree import join, split
from hydrant.training.memory import is_out_of_memory
from hydrant.training.prepare.build_optimizers import named_settings
from hydrant.training.update import Optimizers

_MAX_SIDE = 4
"""The largest size of a dimension in the stand-ins of weights."""


def check_steps(
    config: Mapping[str, Any], task: nn.Module, optimizers: Optimizers, device: torch.device
) -> None:
    """Try a step of each optimizer, then save its state, restore it into another one, and try its step.

    The trial runs on the host, so that a full or busy GPU does not count as a fault of the optimizer. An optimizer that
    fails there may need the device of the run, and is tried on it.

    Raises:
        ConfigError: an optimizer fails.
    """
    sparse, host = sparse_parameters(task), torch.device("cpu")
    for name, entry in optimizers.entries.items():
        key, kind = f"{config_prefix(name)}optimizer", type(entry.optimizer).__name__
        if getattr(entry.optimizer, "is_second_order", False):  # as timm marks those that need create_graph
            message = f"{kind} needs second derivatives, which are not computed; choose another optimizer"
            raise ConfigError(key, message)
        make_optimizer = instantiate_node(named_settings(config)[name]["optimizer"])
        try_on = partial(_failure, make_optimizer, entry.optimizer.param_groups, sparse)
        error = try_on(host)
        if error is not None and device != host:
            error = try_on(device)
        if error is not None:
            reason = first_line(error) or type(error).__name__
            remedy = (
                f"give smaller numbers, such as {key}.lr"
                if "overflow" in reason
                else "choose another optimizer"
            )
            message = f"{kind} cannot train this model: {reason}; {remedy}"
            raise ConfigError(key, message) from error


def make_step(optimizer: Optimizer) -> None:
    """Make a step, in the mode and with the closure that the optimizer needs. The closure returns 1."""
    if has_modes(optimizer):
        optimizer.train()  # type: ignore[attr-defined]
    closure = [lambda: torch.ones(())] if needs_closure(optimizer) else []
    optimizer.step(*closure)  # type: ignore[arg-type]  # returns a tensor, as LBFGS needs


def _failure(
    make_optimizer: Callable[[list[dict[str, Any]]], Optimizer],
    groups: Sequence[Mapping[str, Any]],
    sparse: Collection[int],
    device: torch.device,
) -> Exception | None:
    """Return the error of the trial on a device, if any. An error of the device itself is raised."""
    cuda_devices = [device] if device.type == "cuda" else []
    # Kron compiles its step, which takes half a minute.
    eager = torch.compiler.set_stance("force_eager")
    with torch.random.fork_rng(cuda_devices), torch.accelerator.device_index(device.index), eager:
        try:
            first, second = (
                make_optimizer([{**group, "params": _stand_ins(group, sparse, device)} for group in groups])
                for _ in range(2)
            )
            make_step(first)
            tensors: dict[str, Tensor] = {}
            plain = split(first.state_dict(), tensors)
            second.load_state_dict(join(plain, tensors))
            make_step(second)
        except Exception as error:  # an optimizer raises anything
            if is_out_of_memory(error) or isinstance(error, torch.AcceleratorError):
                raise
            return error
    return None


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
