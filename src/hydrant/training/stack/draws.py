"""The random numbers of a task: recorded once, then drawn for each lane as its run alone would draw them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from hydrant.training.stack.function_mode import FunctionMode
from hydrant.training.stack.philox import Dropout

_DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)
_FRESH = (torch.rand, torch.randn)
_LIKE = (torch.rand_like, torch.randn_like)
_FILLS = (Tensor.bernoulli_, Tensor.uniform_, Tensor.normal_)


@dataclass(frozen=True)
class Draw:
    """How to draw the random numbers of one call again, from the default generator of their device."""

    like: Tensor
    """What the call returns, without its values: on the device `meta`."""
    device: torch.device
    fill: Callable[[Tensor], object]
    """Draws the numbers into a contiguous tensor of that shape and dtype on the device."""
    dropout: Dropout | None = None
    """The call, if it is one of dropout on CUDA."""

    def empty(self, *sizes: int) -> Tensor:
        """Return a tensor to fill, with these dimensions in front."""
        return self.like.new_empty(*sizes, *self.like.shape, device=self.device)


class RecordDraws(FunctionMode):
    """Records in `draws` the calls inside this context that draw random numbers, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Draw] = []

    def call(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        result = func(*args, **named)
        if (fill := _fill_of(func, args, named)) is not None:
            dtype = torch.float32 if _is_rounded_once(func, args, named) else result.dtype
            like = torch.empty_like(result, dtype=dtype, device="meta")
            self.draws.append(Draw(like, result.device, fill, _dropout_of(func, args, named)))
        return result


class ReplayDraws(FunctionMode):
    """Gives the calls inside this context that draw random numbers those in `drawn`, one after the other."""

    def __init__(self, drawn: Sequence[Tensor]) -> None:
        super().__init__()
        self._drawn: Iterator[Tensor] = iter(drawn)

    def call(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        if func in _DROPOUTS:
            return (args[0] * next(self._drawn)).to(args[0].dtype) if _drops(args, named) else args[0]
        return next(self._drawn) if func in _FRESH + _LIKE + _FILLS else func(*args, **named)


def _fill_of(func: Any, args: Sequence[Any], named: dict[str, Any]) -> Callable[[Tensor], object] | None:
    """Return how to draw the random numbers of a call again into a tensor; None if it draws none."""
    if func in _DROPOUTS and _drops(args, named):
        ratio = _argument(args, named, 1, "p", 0.5)
        if func is F.dropout and args[0].is_cpu and args[0].is_contiguous() and ratio < 1:
            return partial(_fill_with_factors, ratio)
        # The factors do not depend on the input.
        draw = partial(func, torch.ones_like(args[0]), p=ratio, training=True)
        if _is_rounded_once(func, args, named):
            return lambda target: target.copy_(draw() != 0).div_(1 - ratio)
        return _copies(draw)
    if func in _FRESH:
        return _copies(partial(func, *args, **named))
    if func in _FILLS and args[0].is_contiguous():
        return lambda target: func(target, *args[1:], **named)
    if func in _LIKE + _FILLS:
        # Into a new tensor with the same strides, because torch fills in the order of memory.
        return _copies(partial(func, torch.empty_like(args[0]), *args[1:], **named))
    return None


def _dropout_of(func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Dropout | None:
    """Return the call of dropout on CUDA whose numbers another program can draw too; None for other calls."""
    ratio = _argument(args, named, 1, "p", 0.5)
    if func is F.dropout and args[0].is_cuda and isinstance(ratio, int | float) and ratio < 1:
        return Dropout(ratio, args[0].dtype, args[0].numel())
    return None


def _copies(draw: Callable[[], Tensor]) -> Callable[[Tensor], object]:
    return lambda target: target.copy_(draw())


def _fill_with_factors(ratio: float, target: Tensor) -> None:
    """Draw what dropout multiplies its input by, as torch does on the CPU. On CUDA it has a kernel of its own."""
    target.bernoulli_(1 - ratio).div_(1 - ratio)


def _is_rounded_once(func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Return whether a dropout multiplies numbers of 16 bits by a float32 factor and rounds the product only.

    The kernel of CUDA does. The other dropouts multiply by a factor that is rounded to 16 bits.
    """
    return (
        func is F.dropout
        and args[0].is_cuda
        and args[0].dtype in (torch.float16, torch.bfloat16)
        and _argument(args, named, 1, "p", 0.5) < 1
    )


def _drops(args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Return whether a call of a dropout function draws random numbers."""
    ratio = _argument(args, named, 1, "p", 0.5)
    is_zero = isinstance(ratio, int | float) and ratio == 0
    return bool(_argument(args, named, 2, "training", True)) and not is_zero


def _argument(args: Sequence[Any], named: Mapping[str, Any], position: int, name: str, default: Any) -> Any:
    return named[name] if name in named else args[position] if len(args) > position else default
