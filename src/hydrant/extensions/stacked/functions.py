"""Functions of torch for all lanes at once, faster than their batching rules: linear layers, losses and attention."""

import functools
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C import (  # pyright: ignore[reportAttributeAccessIssue]
    DispatchKey,
    DispatchKeySet,
    _functorch,  # pyright: ignore[reportAttributeAccessIssue]
)
from torch._functorch import pyfunctorch
from torch.overrides import TorchFunctionMode


class FunctionMode(TorchFunctionMode):
    """Inside this context, `call` is called instead of each function of torch."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        return self.call(func, args, dict(kwargs or {}))

    def call(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        """Return the result of `func(*args, **named)`, or what stands for it."""
        return func(*args, **named)


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
        used = {key: value for key, value in named.items() if value is not None}
        if func is F.linear and args and not torch.is_autocast_enabled(args[0].device.type):
            ours: Any = _linear
        elif func is F.cross_entropy and _has_indices_alone(args, used):
            ours = _cross_entropy
        else:
            return func(*args, **named)
        transform: Any = pyfunctorch.retrieve_current_functorch_interpreter()
        if transform.level() != self._level:
            return func(*args, **named)
        return ours(transform, *args, **used)


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


_attend = torch.ops.aten.scaled_dot_product_attention.default
_BELOW_VMAP = DispatchKeySet(DispatchKey.FuncTorchDynamicLayerBackMode)


@functools.cache
def fold_attention() -> torch.library.Library:
    """Let `torch.vmap` map `scaled_dot_product_attention` by one call for all lanes, from now on in this process.

    This holds wherever it is called: by a module of torch or timm, and in compiled code. torch itself maps the kernel
    that it chooses for a lane (November 2026). So autocast does not convert the inputs, the kernel of the CPU is called
    lane by lane, and torch 2.11 finds no weights to train: on CUDA, the memory-efficient kernel keeps no sums for the
    backward pass, which fails ("LSE is not correctly aligned").

    Returns:
        what holds the rule. torch forgets it with this object.
    """
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        # torch 2.11 gives it also with `allow_override`.
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        library.impl("scaled_dot_product_attention", _map, "FuncTorchVmapMode", allow_override=True)
    return library


def _map(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Return the attention of every lane: of (B, H, L, D) in each by one call for (lanes * B, H, L, D).

    With dropout, whose numbers would be drawn for all lanes at once, and with inputs of other batches, for which torch
    has no fused kernel, it is mapped as by torch.
    """
    inputs, options = (query, key, value), {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
    batch = query.shape[:-3]
    if dropout_p or any(x.ndim < 3 or x.shape[:-3] != batch for x in inputs):
        return _attend.decompose(*inputs, attn_mask, dropout_p, **options)
    vmap: Any = pyfunctorch.retrieve_current_functorch_interpreter()
    level, num_lanes = vmap.level(), vmap.batch_size()
    folded = [with_lanes(x, level, num_lanes).flatten(0, -4) for x in inputs]
    mask = None if attn_mask is None else _folded_mask(attn_mask, level, num_lanes, batch)
    mixed = _attend.redispatch(_BELOW_VMAP, *folded, mask, **options)
    return _functorch._add_batch_dim(mixed.unflatten(0, (num_lanes, *batch)), 0, level)


def _folded_mask(mask: Tensor, level: int, num_lanes: int, batch: torch.Size) -> Tensor:
    """Return a mask or bias of (lanes * B, H, L, L), or one that all samples of all lanes share."""
    plain, lane_dim = _functorch._unwrap_batched(mask, level)
    if lane_dim is None and mask.ndim <= 4 and mask.shape[:-3].numel() == 1:
        return plain
    missing = [None] * (len(batch) + 3 - mask.ndim)
    of_lanes = with_lanes(mask, level, num_lanes)[(slice(None), *missing)]
    return of_lanes.expand(-1, *batch, -1, -1, -1).flatten(0, -4)
