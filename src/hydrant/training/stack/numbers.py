"""Let the numbers of an optimizer or a loss be tensors, so that each lane of a stack has its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hydrant.data.base import to_device
from hydrant.training.stack.function_mode import FunctionMode

_READS = (Tensor.item, Tensor.__float__, Tensor.__int__)
_COMPARISONS = {Tensor.__eq__: False, Tensor.__ne__: True, Tensor.eq: False, Tensor.ne: True}
_FRESH = (torch.empty, torch.zeros, torch.empty_like, torch.zeros_like)


class DecidesByNumber(Exception):
    """The code decides by a number that may differ from lane to lane, or from update to update."""

    def __init__(self, message: str = "it branches on a number") -> None:
        super().__init__(message)


class LaneNumbers:
    """Copies numbers of all lanes to their device. Does not wait for it, and copies equal numbers once.

    Args:
        device: of the lanes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._rows: list[list[float]] = []
        self._tensor = torch.empty(0, dtype=torch.float64, device=device)

    def __call__(self, rows: Sequence[Sequence[float]]) -> Tensor:
        """Return numbers, (rows, lanes) float64. They must not be written into."""
        if (wanted := [list(row) for row in rows]) != self._rows:
            self._rows = wanted
            self._tensor = to_device(torch.tensor(wanted, dtype=torch.float64), self._device)
        return self._tensor


class TensorNumbers(FunctionMode):
    """Inside this context, torch's functions take tensors of shape () where they need Python numbers.

    A number that is read from a tensor, such as the count of steps, stays a tensor. A comparison with a constant always
    finds a difference, so the caller must exclude numbers that are 0 in some lanes only.

    Args:
        zero: a tensor of shape () with a lane dimension. It is added to every new buffer, so that the buffer gets a
            lane dimension too.

    Raises:
        DecidesByNumber: other code branches on a tensor.
    """

    def __init__(self, zero: Tensor | None = None) -> None:
        super().__init__()
        self._zero = zero

    def call(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        if func in _READS:
            return args[0] if args[0].is_floating_point() else args[0].double()
        if func in _COMPARISONS and args[0].ndim == 0 and isinstance(args[1], int | float):
            return _COMPARISONS[func]
        if func is Tensor.__bool__:
            raise DecidesByNumber
        if func is F.cross_entropy and isinstance(named.get("label_smoothing"), Tensor):
            return _smoothed_cross_entropy(*args, **named)
        if (out := named.pop("out", None)) is not None:
            return out.copy_(func(*args, **named))
        if func in _FRESH and self._zero is not None:
            fresh = func(*args, **named).zero_()
            return fresh + self._zero.to(fresh.dtype)
        return _call(func, args, named)


def _call(func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
    """Call a function of torch whose numbers may be tensors, in operations that torch maps over lanes as a whole.

    torch has no batching rules for some operations, and would make them lane by lane.
    """
    name = getattr(func, "__name__", "")
    if name == "_foreach_norm":
        return [torch.linalg.vector_norm(tensor, *args[1:]) for tensor in args[0]]
    match name.rstrip("_"):
        case "add" | "sub" if isinstance(factor := named.get("alpha"), Tensor):
            return func(args[0], args[1] * factor.to(args[1].dtype))
        case "addcmul":
            result = args[0] + args[1] * args[2] * _number(named.get("value", 1), args[0])
        case "addcdiv":
            result = args[0] + args[1] / args[2] * _number(named.get("value", 1), args[0])
        case "lerp":
            weight = named.get("weight", args[-1])
            result = args[0] + (args[1] - args[0]) * _number(weight, args[0])
        case "clamp" | "clamp_min" | "clamp_max" if name.endswith("_"):
            result = getattr(torch, name[:-1])(*args, **named)
        case _:
            return func(*args, **named)
    return args[0].copy_(result) if name.endswith("_") else result


def _number(value: Any, like: Tensor) -> Any:
    return value.to(like.dtype) if isinstance(value, Tensor) else value


def _smoothed_cross_entropy(*args: Any, label_smoothing: Tensor, **named: Any) -> Tensor:
    """Return the cross entropy, which is linear in the label smoothing."""
    plain, uniform = (F.cross_entropy(*args, **named, label_smoothing=end) for end in (0.0, 1.0))
    return plain + (uniform - plain) * label_smoothing.to(plain.dtype)
