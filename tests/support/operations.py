"""The operations that torch carries out."""

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Names(TorchDispatchMode):
    """A context that collects the names of its operations, in order: all, or those with arguments that `counts`."""

    def __init__(self, counts: Callable[[Any], bool] = lambda arguments: True) -> None:
        super().__init__()
        self.found: list[str] = []
        self._counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if self._counts((args, kwargs)):
            self.found.append(str(func))
        return func(*args, **(kwargs or {}))
