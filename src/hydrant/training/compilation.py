"""What the loop knows of torch.compile: `Compilation`, here eager, and the report."""

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hydrant.batch import Batch, Outcome
from hydrant.optimizers.kernels import OptimizerStep
from hydrant.training.distributed.ddp import Collective
from hydrant.training.distributed.world import World


@dataclass(frozen=True)
class Incident:
    """A graph break or a recompilation."""

    reason: str
    location: str  # file:line of the user's code
    guard: str | None  # the condition that failed; only for a recompilation
    num_updates: int  # completed updates at that time
    remedy: str  # Dynamo's hint; "" if it has none

    def __str__(self) -> str:
        return f"{self.location}: {self.guard or self.reason}"


@dataclass(frozen=True)
class CompileReport:
    """What torch.compile did in this process since the task was prepared."""

    graphs: int = 0
    seconds: float = 0.0
    cold_seconds: float = 0.0  # the part of `seconds` before the first update
    graph_breaks: list[Incident] = field(default_factory=list)
    recompiles: list[Incident] = field(default_factory=list)
    planned: list[Incident] = field(default_factory=list)
    """Expected recompilations: the graph for evaluation, and the first graphs of the optimizer steps."""
    limits: list[Incident] = field(default_factory=list)
    """The places where torch reached its recompilation limit and now runs eager."""
    cache: Mapping[str, int] = field(default_factory=lambda: {"hits": 0, "misses": 0})

    def __str__(self) -> str:
        counts = {
            "graph": self.graphs,
            "graph break": len(self.graph_breaks),
            "recompile": len(self.recompiles),
        }
        if self.limits:
            counts["part eager since torch's limit"] = len(self.limits)
        shown = ", ".join(f"{n} {noun}{'' if n == 1 else 's'}" for noun, n in counts.items())
        return f"{shown}, {self.seconds:.1f} s, {self.cold_seconds:.1f} s of it before the first update"

    def summary(self) -> dict[str, float]:
        """Return the counts for summary.json."""
        return {
            "graphs": self.graphs,
            "graph_breaks": len(self.graph_breaks),
            "recompiles": len(self.recompiles),
            "seconds": self.seconds,
            "cold_seconds": self.cold_seconds,
        }

    def details(self) -> dict[str, Any]:
        """Return everything, for compile_report.json."""
        return asdict(self)


Gradients = tuple[Tensor, dict[str, Tensor]]
"""The loss of one micro-batch, shape (), and its gradients by parameter name, on the host unless sharded."""


class Compilation:
    """Compiles a task and reports what was compiled; this one nothing. The builder calls `compilation(world)`."""

    def __init__(self, world: World) -> None:
        del world

    is_on = False  # also after `disable`
    reuses_memory = False  # the next call overwrites outcomes and gradients, because CUDA graphs are replayed

    @property
    def compiles_steps(self) -> bool:
        """Whether the steps of the optimizers are compiled."""
        return False

    def apply(self, task: nn.Module, *, retains_graph: bool) -> None:
        """Compile a task in place. `retains_graph`: backward runs several times through one graph."""

    def check_fits(self, task: nn.Module, collectives: Sequence[Collective], derivative: str) -> None:
        """Check that the task can be compiled as configured. The calls are those of `CallRecorder`.

        Raises:
            ConfigError: the task lacks the parts to compile, or one of these calls cannot be compiled.
        """

    def check_sharded(self, blocks: Sequence[nn.Module]) -> None:
        """Check that the task can be compiled with sharded weights. `blocks`: its parts that are sharded one by one.

        Raises:
            ConfigError: names the key to change.
        """

    def begin(self, trainer: Any) -> None:
        """Call `check_first` for a run; if that fails and the config allows it, continue eager.

        Raises:
            CompileError: as `check_first`.
        """

    def check_first(self, first_gradients: Callable[[], Gradients], plan: Any, num_updates: int) -> None:
        """Compile the task by a first call; compare it with the eager task if the config says so. All ranks call it.

        Args:
            first_gradients: makes the next micro-batch; leaves gradients, buffers and random states as they were.
            plan: of the run.
            num_updates: completed updates.

        Raises:
            CompileError: the task cannot be compiled, or nothing in it was compiled.
            CompileMismatch: the compiled task computes something else.
        """

    def force_eager(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which no compiled code runs."""
        return contextlib.nullcontext()

    def forward_train(self, task: nn.Module, batch: Batch) -> Outcome:
        """Return the outcome of a micro-batch in training, in memory that the next call does not overwrite."""
        return task(batch)

    def forward_eval(self, task: nn.Module, batch: Batch) -> Outcome:
        """Return the outcome of a batch in evaluation."""
        return task(batch)

    def optimizer_step(self, optimizer: Optimizer, scheduled: Collection[str]) -> OptimizerStep:
        """Return the step of an optimizer. `scheduled`: the fields of its groups that change during the run."""
        return OptimizerStep(optimizer, scheduled)

    def check_recompiles(self, num_updates: int, *, is_planned: bool = False) -> None:
        """Log recompilations since the last call.

        Raises:
            CompileError: there are more recompilations or graph breaks than the config allows.
        """

    def report(self) -> CompileReport:
        return CompileReport()


class Eager(Compilation):
    """Compiles nothing."""
