"""The random numbers that a task draws: recorded once, then drawn for each lane as its run alone draws them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d)
_FRESH = (torch.rand, torch.randn)
_LIKE = (torch.rand_like, torch.randn_like)
_FILLS = (Tensor.bernoulli_, Tensor.uniform_, Tensor.normal_)

Draw = Callable[[], Tensor]
"""Draws the random numbers of one call again, from the default generator of their device."""


class RecordDraws(TorchFunctionMode):
    """Records in `draws` the calls inside this context that draw random numbers, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Draw] = []

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        named = dict(kwargs or {})
        if (draw := _draw_of(func, args, named)) is not None:
            self.draws.append(draw)
        return func(*args, **named)


class ReplayDraws(TorchFunctionMode):
    """Gives the calls inside this context that draw random numbers those in `drawn`, one after the other."""

    def __init__(self, drawn: Sequence[Tensor]) -> None:
        super().__init__()
        self._drawn: Iterator[Tensor] = iter(drawn)

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        named = dict(kwargs or {})
        if func in _DROPOUTS:
            return args[0] * next(self._drawn) if _drops(args, named) else args[0]
        return next(self._drawn) if func in _FRESH + _LIKE + _FILLS else func(*args, **named)


def _draw_of(func: Any, args: Sequence[Any], named: dict[str, Any]) -> Draw | None:
    """Return how to draw the random numbers of a call again; None if it draws none."""
    if func in _DROPOUTS and _drops(args, named):
        dropout = partial(func, p=_argument(args, named, 1, "p", 0.5), training=True)
        return partial(dropout, torch.ones_like(args[0]))  # the factors do not depend on the input
    if func in _FRESH:
        return partial(func, *args, **named)
    if func in _LIKE + _FILLS:
        return partial(func, torch.empty_like(args[0]), *args[1:], **named)
    return None


def _drops(args: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Return whether a call of a dropout function draws random numbers."""
    ratio = _argument(args, named, 1, "p", 0.5)
    is_zero = isinstance(ratio, int | float) and ratio == 0
    return bool(_argument(args, named, 2, "training", True)) and not is_zero


def _argument(args: Sequence[Any], named: Mapping[str, Any], position: int, name: str, default: Any) -> Any:
    return named[name] if name in named else args[position] if len(args) > position else default
