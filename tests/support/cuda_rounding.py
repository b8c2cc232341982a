"""Round as CUDA does where its kernels and those of the CPU compute one operation by other steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
_DIVISIONS = {_ATEN.div.Tensor: _ATEN.mul.Tensor, _ATEN.div_.Tensor: _ATEN.mul_.Tensor}


class CudaRounding(TorchDispatchMode):
    """In this context, what is divided by a number of Python is multiplied with its reciprocal.

    CUDA does so in its kernels of divisions and of means. Dividing on the host, or by a tensor, rounds once.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        if func in _DIVISIONS and not isinstance(args[1], Tensor) and args[0].is_floating_point():
            return _DIVISIONS[func](args[0], _reciprocal(args[1], args[0]))
        if func is _ATEN.mean.default:
            total = _ATEN.sum.default(*args, **kwargs)
            return total * _reciprocal(args[0].numel(), total)
        if func is _ATEN.mean.dim:
            total = _ATEN.sum.dim_IntList(*args, **kwargs)
            return total * _reciprocal(args[0].numel() / max(total.numel(), 1), total)
        return func(*args, **kwargs)


def _reciprocal(number: float, like: Tensor) -> Tensor:
    return torch.ones((), dtype=like.dtype) / number
