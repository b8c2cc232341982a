"""torch's fused kernels, called for the weights of one lane in a single row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

FusedCall = Callable[..., None]
"""`call(gradients, **numbers)`: applies a list with the one gradient; `numbers` replace those of the group, by the
argument that a kernel has for them."""

_ARGUMENTS = {"betas.0": "beta1", "betas.1": "beta2"}
"""The arguments of the kernels whose names differ from the fields of a group."""


def argument_of(field: str) -> str:
    """Return the argument of the kernels for a field such as `lr` or `betas.0`."""
    return _ARGUMENTS.get(field, field)


def has_fused_call(optimizer: Optimizer) -> bool:
    """Return whether `fused_call` knows the kernel of an optimizer, and all its groups use it."""
    return type(optimizer) in _CALLS and all(group.get("fused") for group in optimizer.param_groups)


def fused_call(
    optimizer: Optimizer, group: Mapping[str, Any], row: Tensor, state: Mapping[str, Tensor]
) -> FusedCall:
    """Return the call of the kernel that updates a row of weights. The caller counts the steps before.

    Args:
        optimizer: of a class that `has_fused_call`.
        group: its param group with the numbers.
        row: the weights, (N,).
        state: of the row: tensors (N,) and, for the count of steps, ().
    """
    return _CALLS[type(optimizer)](group, row, state)


def _adam(group: Mapping[str, Any], row: Tensor, state: Mapping[str, Tensor]) -> FusedCall:
    kernel: Any = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_  # pyright: ignore
    return partial(
        kernel,
        [row],
        exp_avgs=[state["exp_avg"]],
        exp_avg_sqs=[state["exp_avg_sq"]],
        max_exp_avg_sqs=[state["max_exp_avg_sq"]] if group["amsgrad"] else [],
        state_steps=[state["step"]],
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        **{key: group[key] for key in ("weight_decay", "eps", "amsgrad", "maximize")},
    )


def _sgd(group: Mapping[str, Any], row: Tensor, state: Mapping[str, Tensor]) -> FusedCall:
    kernel: Any = torch._fused_sgd_  # pyright: ignore
    return partial(
        kernel,
        [row],
        momentum_buffer_list=[state["momentum_buffer"]] if group["momentum"] else [],
        is_first_step=False,
        **{
            key: group[key] for key in ("lr", "weight_decay", "momentum", "dampening", "nesterov", "maximize")
        },
    )


def _adagrad(group: Mapping[str, Any], row: Tensor, state: Mapping[str, Tensor]) -> FusedCall:
    kernel: Any = torch._fused_adagrad_  # pyright: ignore
    return partial(
        kernel,
        [row],
        state_sums=[state["sum"]],
        state_steps=[state["step"]],
        **{key: group[key] for key in ("lr", "lr_decay", "weight_decay", "eps", "maximize")},
    )


_CALLS: Mapping[type[Optimizer], Callable[[Mapping[str, Any], Tensor, Mapping[str, Tensor]], FusedCall]] = {
    Adam: _adam,
    AdamW: _adam,
    SGD: _sgd,
    Adagrad: _adagrad,
}
