"""The operations that torch carries out."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Names(TorchDispatchMode):
    """A context that collects the names of its operations, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.found.append(str(func))
        return func(*args, **(kwargs or {}))
