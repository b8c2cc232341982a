"""Calls of torch's functions inside a context."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch.overrides import TorchFunctionMode


class FunctionMode(TorchFunctionMode, ABC):
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

    @abstractmethod
    def call(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        """Return the result of `func(*args, **named)`, or what stands for it."""
