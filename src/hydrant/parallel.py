"""How a task is spread over ranks. One rank is the null parallelism."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from torch import Tensor, nn

from hydrant.errors import ConfigError


class Parallel(Protocol):
    """Spreads a task over the ranks of a run."""

    num_processes: int

    def wrap(self, task: nn.Module) -> nn.Module:
        """The task as the loop calls it; the outermost wrapper, after compilation."""
        ...

    def gradient_sync(self, task: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        """The context of one micro-step: ranks exchange gradients in the last one of an update."""
        ...

    def sum(self, values: Tensor) -> Tensor:
        """Add a tensor over the ranks."""
        ...


class Single:
    """One process, one device."""

    def __init__(self, *, num_processes: int) -> None:
        if num_processes != 1:
            raise ConfigError(
                "parallel.num_processes", f"{num_processes} is not 1: this option is one process"
            )
        self.num_processes = num_processes

    def wrap(self, task: nn.Module) -> nn.Module:
        return task

    def gradient_sync(self, task: nn.Module, is_last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def sum(self, values: Tensor) -> Tensor:
        return values
