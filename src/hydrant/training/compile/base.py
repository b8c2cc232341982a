"""The interface between the training loop and torch.compile, and the implementation that compiles nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from hydrant.batch import Batch, Outcome
from hydrant.training.compile.eager_step import EagerStep, OptimizerStep
from hydrant.training.compile.monitor import CompileReport
from hydrant.training.distributed.collectives import Collective
from hydrant.training.distributed.world import World

FAILURE_REMEDY = "Use compile=eager, or compile.on_failure=fallback to continue eager"


class Compilation:
    """Compiles a task and reports what was compiled; this one nothing. The builder calls `compilation(world)`."""

    is_on = False  # also after `disable`
    checks = False  # compare the first loss and gradients with those of the eager task
    falls_back = False  # continue eager if the task cannot be compiled
    reuses_memory = False  # the next call overwrites outcomes and gradients, because CUDA graphs are replayed

    @property
    def compiles_steps(self) -> bool:
        """Whether the steps of the optimizers are compiled."""
        return False

    def apply(self, task: nn.Module, *, retains_graph: bool) -> None:
        """Compile a task in place. `retains_graph`: backward runs several times through one graph."""

    def check_fits(self, task: nn.Module, collectives: Sequence[Collective]) -> None:
        """Check that the task can be compiled as configured.

        Raises:
            ConfigError: the task lacks the parts to compile, or one of its collectives cannot be compiled.
        """

    def force_eager(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which no compiled code runs."""
        return contextlib.nullcontext()

    def disable(self) -> None:
        """Run everything eager from now on."""

    def forward_train(self, task: nn.Module, batch: Batch) -> Outcome:
        """Return the outcome of a micro-batch in training, in memory that the next call does not overwrite."""
        return task(batch)

    def forward_eval(self, task: nn.Module, batch: Batch) -> Outcome:
        """Return the outcome of a batch in evaluation."""
        return task(batch)

    def optimizer_step(self, optimizer: Optimizer, scheduled: Collection[str]) -> OptimizerStep:
        """Return the step of an optimizer. `scheduled`: the fields of its groups that change during the run."""
        return EagerStep(optimizer, scheduled)

    def check_recompiles(self, num_updates: int) -> None:
        """Log recompilations since the last call.

        Raises:
            CompileError: there are more recompilations or graph breaks than the config allows.
        """

    def report(self) -> CompileReport:
        return CompileReport()


class Eager(Compilation):
    """Compiles nothing."""

    def __init__(self, world: World) -> None:
        del world
