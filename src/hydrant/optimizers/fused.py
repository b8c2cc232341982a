"""torch's fused kernels, called without the Python around them, which takes longer than the kernel of a small model."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

FusedCall = Callable[..., None]
"""`call(gradients, **numbers)`: applies a gradient for each weight; `numbers` replace those of the group, by the
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
    optimizer: Optimizer,
    group: Mapping[str, Any],
    weights: Sequence[Tensor],
    states: Sequence[Mapping[str, Tensor]],
) -> FusedCall:
    """Return the call of the kernel that updates weights. The caller counts the steps before.

    Args:
        optimizer: of a class that `has_fused_call`.
        group: its param group with the numbers.
        weights: of one dtype, on one device.
        states: of the weights.

    Raises:
        KeyError: a state lacks a tensor.
    """
    return _CALLS[type(optimizer)](group, weights, states)


class FusedStep:
    """The step of an optimizer whose weights all have a state and get gradients, as long as that is so.

    It reads the gradients and the tensors of the states anew, because others may replace them. The weights, and which
    states belong to them, are kept. Tested with torch 2.11 and 2.15 to give the bits of `Optimizer.step`, and only on
    the CPU.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer, self._groups = optimizer, optimizer.param_groups
        self._weights: list[list[Tensor]] = [list(group["params"]) for group in self._groups]
        self._states = list(optimizer.state.values())
        self._by_group = [[optimizer.state.get(w, {}) for w in weights] for weights in self._weights]

    @classmethod
    def of(cls, optimizer: Optimizer) -> FusedStep | None:
        """Return the next step of an optimizer that has made one; None if it has no kernel that can be called so."""
        groups: list[list[Tensor]] = [group["params"] for group in optimizer.param_groups]
        if not has_fused_call(optimizer) or any(not weights or not weights[0].is_cpu for weights in groups):
            return None
        if any(weight.grad is None for weights in groups for weight in weights):
            return None
        kinds = [{(weight.device, weight.dtype) for weight in weights} for weights in groups]
        return cls(optimizer) if all(len(of_group) == 1 for of_group in kinds) else None

    def __call__(self) -> bool:
        """Make a step. Return False, without a change, if it is no longer the step of this optimizer."""
        optimizer, groups = self._optimizer, self._groups
        if not self._has_same_states():
            return False
        gradients = [[weight.grad for weight in weights] for weights in self._weights]
        if any(gradient is None for of_group in gradients for gradient in of_group):
            return False
        try:
            parts = zip(groups, self._weights, self._by_group, strict=True)
            calls = [fused_call(optimizer, *part) for part in parts]
        except KeyError:  # such as a momentum that was 0 before
            return False
        with torch.no_grad():
            for call, of_group, states in zip(calls, gradients, self._by_group, strict=True):
                if "step" in states[0]:
                    torch._foreach_add_([state["step"] for state in states], 1)  # pyright: ignore[reportPrivateUsage]
                call(of_group)
        return True

    def _has_same_states(self) -> bool:
        groups, states = self._optimizer.param_groups, self._optimizer.state
        is_same = (
            groups is self._groups and len(groups) == len(self._weights) and len(states) == len(self._states)
        )
        return (
            is_same
            and all(len(g["params"]) == len(w) for g, w in zip(groups, self._weights, strict=True))
            and all(map(operator.is_, states.values(), self._states))
        )


def _adam(
    group: Mapping[str, Any], weights: Sequence[Tensor], states: Sequence[Mapping[str, Tensor]]
) -> FusedCall:
    kernel: Any = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_  # pyright: ignore
    return partial(
        kernel,
        weights,
        exp_avgs=[state["exp_avg"] for state in states],
        exp_avg_sqs=[state["exp_avg_sq"] for state in states],
        max_exp_avg_sqs=[state["max_exp_avg_sq"] for state in states] if group["amsgrad"] else [],
        state_steps=[state["step"] for state in states],
        lr=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        **{key: group[key] for key in ("weight_decay", "eps", "amsgrad", "maximize")},
    )


def _sgd(
    group: Mapping[str, Any], weights: Sequence[Tensor], states: Sequence[Mapping[str, Tensor]]
) -> FusedCall:
    kernel: Any = torch._fused_sgd_  # pyright: ignore
    return partial(
        kernel,
        weights,
        momentum_buffer_list=[state["momentum_buffer"] for state in states] if group["momentum"] else [],
        is_first_step=False,
        **{
            key: group[key] for key in ("lr", "weight_decay", "momentum", "dampening", "nesterov", "maximize")
        },
    )


def _adagrad(
    group: Mapping[str, Any], weights: Sequence[Tensor], states: Sequence[Mapping[str, Tensor]]
) -> FusedCall:
    kernel: Any = torch._fused_adagrad_  # pyright: ignore
    return partial(
        kernel,
        weights,
        state_sums=[state["sum"] for state in states],
        state_steps=[state["step"] for state in states],
        **{key: group[key] for key in ("lr", "lr_decay", "weight_decay", "eps", "maximize")},
    )


_CALLS: Mapping[
    type[Optimizer],
    Callable[[Mapping[str, Any], Sequence[Tensor], Sequence[Mapping[str, Tensor]]], FusedCall],
] = {Adam: _adam, AdamW: _adam, SGD: _sgd, Adagrad: _adagrad}
