"""What the loop asks of a compilation; not to compile is the null object."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Any, Protocol

from torch import nn
from torch.optim import Optimizer

from hydrant.batch import Batch, Outcome
from hydrant.collectives import Collective
from hydrant.compilation.step import EagerUpdate, Step
from hydrant.compilation.watch import CompileReport
from hydrant.distributed import World


class Compilation(Protocol):
    """Compiles a task, and tells what that took. Built as `compilation(world)`."""

    is_on: bool  # until it is given up
    checks: bool  # whether the first loss and gradients are compared with eager ones
    falls_back: bool  # whether a run that cannot be compiled goes on eager
    reuses_memory: bool  # whether the next call writes over gradients: CUDA graphs are replayed

    def apply(self, task: nn.Module, *, retains_graph: bool) -> None:
        """Compile a task in place; `retains_graph`: its losses are backpropagated one after the other."""
        ...

    def check_fits(self, task: nn.Module, collectives: Sequence[Collective]) -> None:
        """Refuse a task, by the collectives it calls or because it has not what is to be compiled.

        Raises:
            ConfigError: the key to change.
        """
        ...

    def eagerly(self) -> contextlib.AbstractContextManager[Any]:
        """While it lasts, nothing that is compiled is used."""
        ...

    def give_up(self) -> None:
        """Everything is eager from now on."""
        ...

    def train(self, task: nn.Module, batch: Batch) -> Outcome:
        """A task's outcome in training, which the next one leaves as it is."""
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

    is_on = checks = falls_back = reuses_memory = False

    def __init__(self, world: World) -> None:
        del world

    def apply(self, task: nn.Module, *, retains_graph: bool) -> None: ...

    def check_fits(self, task: nn.Module, collectives: Sequence[Collective]) -> None: ...

    def eagerly(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()

    def give_up(self) -> None: ...

    def train(self, task: nn.Module, batch: Batch) -> Outcome:
        return task(batch)

    def evaluate(self, task: nn.Module, batch: Batch) -> Outcome:
        return task(batch)

    def update_of(self, optimizer: Optimizer, scheduled: Collection[str]) -> Step:
        del scheduled
        return EagerUpdate(optimizer)

    def follow(self, num_updates: int) -> None: ...

    def report(self) -> CompileReport:
        return CompileReport()
