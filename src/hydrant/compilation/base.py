"""What the loop asks of a compilation; not to compile is the null object."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from hydrant.batch import Batch, Outcome
from hydrant.compilation.update import EagerUpdate, Step
from hydrant.compilation.watch import CompileReport


class Compilation(Protocol):
    """Compiles a task, and tells what that took. Built as `compilation(device)`."""

    is_on: bool
    checks: bool  # whether the first loss and gradients are compared with eager ones
    falls_back: bool  # whether a run that cannot be compiled goes on eager

    def apply(self, task: nn.Module, *, retains_graph: bool) -> None:
        """Compile a task in place; `retains_graph`: its losses are backpropagated one after the other."""
        ...

    def check_fits(self, task: nn.Module) -> None:
        """Raises ConfigError where the task has not what is to be compiled."""
        ...

    def eagerly(self) -> contextlib.AbstractContextManager[Any]:
        """While it lasts, nothing that is compiled is used."""
        ...

    def give_up(self) -> None:
        """Everything is eager from now on."""
        ...

    def evaluate(self, task: nn.Module, batch: Batch) -> Outcome:
        """A task's outcome in evaluation."""
        ...

    def update_of(self, optimizer: Optimizer, scheduled: Collection[str]) -> Step:
        """What applies the update of an optimizer, of whose groups these fields change from update to update."""
        ...

    def follow(self, num_updates: int) -> None:
        """Tell what was compiled again since the last call.

        Raises:
            CompileError: it is more than the budget.
        """
        ...

    def report(self) -> CompileReport: ...


class Eager:
    """Nothing is compiled."""

    is_on = checks = falls_back = False

    def __init__(self, device: torch.device) -> None:
        del device

    def apply(self, task: nn.Module, *, retains_graph: bool) -> None: ...

    def check_fits(self, task: nn.Module) -> None: ...

    def eagerly(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def give_up(self) -> None: ...

    def evaluate(self, task: nn.Module, batch: Batch) -> Outcome:
        return task(batch)

    def update_of(self, optimizer: Optimizer, scheduled: Collection[str]) -> Step:
        del scheduled
        return EagerUpdate(optimizer)

    def follow(self, num_updates: int) -> None: ...

    def report(self) -> CompileReport:
        return CompileReport()
