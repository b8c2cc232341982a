"""Functions of torch for all lanes at once, faster than their batching rules: linear layers and cross entropies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._functorch import pyfunctorch

from hydrant.training.stack.function_mode import FunctionMode


class StackedFunctions(FunctionMode):
    """Inside this context, some functions give the results of `torch.vmap` faster.

    `F.linear` gives gradients of the weights that lie in memory as the weights do. Those of the batching rule of torch
    are transposed, so autograd copies them once more. `F.cross_entropy` takes the samples of all lanes as one batch:
    torch has no batching rule for it, and maps several smaller operations instead. Under autocast it computes in
    float32, as it does without `torch.vmap`.

    Enter it in a function that `torch.vmap` maps. It leaves linear layers alone that run under autocast, cross
    entropies with class weights or class probabilities, and what another transform of `torch.func` maps.
    """

    def __init__(self) -> None:
        super().__init__()
        self._level = pyfunctorch.retrieve_current_functorch_interpreter().level()

    def call(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        given = {key: value for key, value in named.items() if value is not None}
        if func is F.linear and args and not torch.is_autocast_enabled(args[0].device.type):
            ours: Any = _linear
        elif func is F.cross_entropy and _has_indices_alone(args, given):
            ours = _cross_entropy
        else:
            return func(*args, **named)
        transform: Any = pyfunctorch.retrieve_current_functorch_interpreter()
        if transform.level() != self._level:
            return func(*args, **named)
        return ours(transform, *args, **given)


def _linear(vmap: Any, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Apply the layer of every lane. `torch.vmap` calls the batching rules of C++ in the same way."""
    level, num_lanes = vmap.level(), vmap.batch_size()
    stacked = [None if t is None else with_lanes(t, level, num_lanes) for t in (input, weight, bias)]
    with vmap.lower():
        outputs: Any = _Linear.apply(*stacked)
    return _functorch._add_batch_dim(outputs, 0, level)


def _has_indices_alone(args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Return whether a cross entropy is one of a batch with class indices, without class weights."""
    is_known = len(args) == 2 and named.keys() <= {"ignore_index", "reduction", "label_smoothing"}
    is_known &= named.get("reduction", "mean") in ("mean", "sum", "none")
    return is_known and args[0].ndim > 1 and not args[1].is_floating_point()


def _cross_entropy(
    vmap: Any,
    logits: Tensor,
    targets: Tensor,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Return the cross entropy of every lane. The samples of all lanes are one batch."""
    level, num_lanes = vmap.level(), vmap.batch_size()
    all_logits, all_targets = (with_lanes(t, level, num_lanes) for t in (logits, targets))
    with vmap.lower():
        terms = F.cross_entropy(
            all_logits.flatten(0, 1),
            all_targets.flatten(0, 1),
            ignore_index=ignore_index,
            reduction="none",
            label_smoothing=label_smoothing,
        ).view(all_targets.shape)
        if reduction != "none":
            terms = terms.flatten(1).sum(1)
        if reduction == "mean":
            terms = terms / (all_targets != ignore_index).flatten(1).sum(1)
    return _functorch._add_batch_dim(terms, 0, level)


def with_lanes(tensor: Tensor, level: int, num_lanes: int) -> Tensor:
    """Return a tensor of a lane with the lanes in front."""
    stacked, dim = _functorch._unwrap_batched(tensor, level)
    if dim == 0:
        return stacked
    return stacked.expand(num_lanes, *stacked.shape) if dim is None else stacked.movedim(dim, 0)


class _Linear(torch.autograd.Function):
    """Inputs (lanes, ..., in), weights (lanes, out, in) and biases (lanes, out) or None give (lanes, ..., out)."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(input, weight)
        rows = _rows(input)
        products = rows.bmm(weight.mT) if bias is None else torch.baddbmm(bias[:, None], rows, weight.mT)
        return products if input.ndim == 3 else products.view(*input.shape[:-1], weight.shape[1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        input, weight = ctx.saved_tensors
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad
        rows = _rows(gradients[0])
        return (
            rows.bmm(weight).view(input.shape) if needs_input else None,
            rows.mT.bmm(_rows(input)) if needs_weight else None,
            rows.sum(1) if needs_bias else None,
        )


def _rows(values: Tensor) -> Tensor:
    """Return values (lanes, ..., N) as (lanes, M, N)."""
    return values if values.ndim == 3 else values.reshape(len(values), -1, values.shape[-1])
