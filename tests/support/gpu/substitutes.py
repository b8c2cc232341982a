"""What computes an operation on the host if the CPU has no kernel of it, or one that rounds otherwise."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch._ops import OpOverload

from gpu import random_numbers
from gpu.attention import ATTENTION

_HOST_KEYS = (
    *("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd"),
    "CompositeExplicitAutogradNonFunctional",
)
_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")


def host_kernel(operation: OpOverload) -> Callable[..., Any]:
    """Return the CPU's kernel of an operation, what is written here, or a decomposition."""
    name = operation.name()
    if name in _AS_ON_CUDA:
        return _AS_ON_CUDA[name]
    if any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in _HOST_KEYS):
        return operation
    base, _, overload = name.removeprefix("aten::").partition(".")
    if overload == "dtype" and base in _PRODUCTS:
        return _product_in_dtype(getattr(torch.ops.aten, base).default)
    written = ATTENTION | _SYNC_BATCH_NORM
    return written.get(base, decomposition_table.get(operation, operation))


def _product_in_dtype(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def compute(*args: Any, **kwargs: Any) -> Tensor:
        *tensors, dtype = args
        return product(*(tensor.to(dtype) for tensor in tensors), **kwargs)

    return compute


# Dropout: the CPU rounds the factor to the dtype of its input, CUDA only the product.


def _dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or p == 1:
        mask = torch.full_like(x, train is False, dtype=torch.bool)
        return x * mask, mask
    mask = random_numbers.dropout_mask(random_numbers.current[-1], x, 1 - p)
    return _scaled(x, mask, 1 / (1 - p)), mask


def _dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    return _scaled(grad, mask, scale)


def _scaled(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    return (x.to(torch.promote_types(x.dtype, torch.float32)) * mask * scale).to(x.dtype)


# Softmax under autocast: CUDA reads float16 and writes float32, which the CPU refuses. The gradient is the other way.


def _softmax_of(operation: OpOverload) -> Callable[..., Tensor]:
    def compute(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
        return operation(x.float() if half_to_float else x, dim, False)

    return compute


def _softmax_gradient_of(operation: OpOverload) -> Callable[..., Tensor]:
    def compute(grad: Tensor, output: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        return operation(grad, output, dim, grad.dtype).to(dtype)

    return compute


_AS_ON_CUDA: dict[str, Callable[..., Any]] = {
    "aten::_softmax": _softmax_of(torch.ops.aten._softmax.default),
    "aten::_log_softmax": _softmax_of(torch.ops.aten._log_softmax.default),
    "aten::_softmax_backward_data": _softmax_gradient_of(torch.ops.aten._softmax_backward_data.default),
    "aten::_log_softmax_backward_data": _softmax_gradient_of(
        torch.ops.aten._log_softmax_backward_data.default
    ),
    "aten::native_dropout": _dropout,
    "aten::native_dropout_backward": _dropout_backward,
}

# Batch normalization over several ranks. x: (N, C, ...); statistics: (C,).


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (x.dim() - 2))


def _reduced_dims(x: Tensor) -> list[int]:
    return [dim for dim in range(x.dim()) if dim != 1]


def _stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    variance, mean = torch.var_mean(x.float(), _reduced_dims(x), correction=0)
    return mean, (variance + eps).rsqrt()


def _gather_stats(
    x: Tensor,
    means: Tensor,
    invstds: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    counts = counts.float().view(-1, 1)
    total = counts.sum()
    mean = (means * counts).sum(0) / total
    variance = ((invstds**-2 - eps + (means - mean) ** 2) * counts).sum(0) / total
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean), momentum)
    if running_var is not None:
        running_var.lerp_((variance * total / (total - 1)).to(running_var), momentum)
    return mean, (variance + eps).rsqrt()


def _normalize(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, invstd: Tensor, eps: float
) -> Tensor:
    normalized = (x.float() - _per_channel(mean, x)) * _per_channel(invstd, x)
    if weight is not None:
        normalized = normalized * _per_channel(weight, x)
    if bias is not None:
        normalized = normalized + _per_channel(bias, x)
    return normalized.to(x.dtype)


def _backward_reduce(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor,
    _input: bool,
    of_weight: bool,
    of_bias: bool,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    grad = grad.float()
    sum_dy = grad.sum(_reduced_dims(x))
    sum_dy_xmu = (grad * (x.float() - _per_channel(mean, x))).sum(_reduced_dims(x))
    grad_weight = (sum_dy_xmu * invstd).to(weight) if of_weight else None
    return sum_dy, sum_dy_xmu, grad_weight, sum_dy.clone() if of_bias else None


def _backward_normalize(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor | None,
    sum_dy: Tensor,
    sum_dy_xmu: Tensor,
    counts: Tensor,
) -> Tensor:
    total = counts.sum()
    centered = grad.float() - _per_channel(sum_dy / total, x)
    slope = _per_channel(invstd**2 * sum_dy_xmu / total, x)
    result = (centered - (x.float() - _per_channel(mean, x)) * slope) * _per_channel(invstd, x)
    return (result if weight is None else result * _per_channel(weight, x)).to(x.dtype)


_SYNC_BATCH_NORM: dict[str, Callable[..., Any]] = {
    "batch_norm_stats": _stats,
    "batch_norm_gather_stats_with_counts": _gather_stats,
    "batch_norm_elemt": _normalize,
    "batch_norm_backward_reduce": _backward_reduce,
    "batch_norm_backward_elemt": _backward_normalize,
}
