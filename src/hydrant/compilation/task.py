"""torch.compile of a task, in place, and the account of what it did. Eager is the null compilation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from hydrant.compilation.update import EagerUpdate, Step, compiled_update
from hydrant.errors import ConfigError, unknown_name

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class Incident:
    """A graph break or a recompile: why, and at which line of the user's code."""

    reason: str
    location: str


@dataclass(frozen=True)
class CompileReport:
    """What torch.compile did in this process since the compilation was applied."""

    graphs: int = 0
    seconds: float = 0.0
    graph_breaks: list[Incident] = field(default_factory=list)
    recompiles: list[Incident] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """The counts, as summary.json shows them."""
        return {
            "graphs": self.graphs,
            "graph_breaks": len(self.graph_breaks),
            "recompiles": len(self.recompiles),
            "seconds": self.seconds,
        }

    def details(self) -> dict[str, Any]:
        """Everything, as compile_report.json shows it."""
        return asdict(self)


class Compilation(Protocol):
    """Compiles a task, and tells what that took."""

    def apply(self, task: nn.Module, *, retains_graph: bool) -> None:
        """Compile a task in place; `retains_graph`: its losses are backpropagated one after the other."""
        ...

    def update_of(self, optimizer: Optimizer, scheduled: Collection[str]) -> Step:
        """What applies the update of an optimizer, of whose groups these fields change from update to update."""
        ...

    def report(self) -> CompileReport: ...


class Eager:
    """Nothing is compiled."""

    def __init__(self, device: torch.device) -> None:
        del device

    def apply(self, task: nn.Module, *, retains_graph: bool) -> None: ...

    def update_of(self, optimizer: Optimizer, scheduled: Collection[str]) -> Step:
        del scheduled
        return EagerUpdate(optimizer)

    def report(self) -> CompileReport:
        return CompileReport()


class Compile:
    """`torch.compile` of the whole task, so that the loss is in the graph. The arguments are torch.compile's.

    In place (`task.compile()`), so names in checkpoints carry no prefix. Evaluation calls the task's own
    `forward`, which stays eager: a smaller last batch costs no recompile. `optimizer` compiles the update too.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        mode: str,
        backend: str,
        fullgraph: bool,
        dynamic: bool | None,
        options: Mapping[str, Any] | None,
        optimizer: bool,
    ) -> None:
        if mode not in _MODES:
            raise unknown_name("compile.mode", "mode", mode, _MODES)
        if mode == "reduce-overhead" and device.type != "cuda":
            told = "reduce_overhead records CUDA graphs and needs CUDA; use compile=default"
            raise ConfigError("compile", told)
        if options and mode != "default":
            told = f"torch.compile takes options or mode={mode}, not both; use compile=default"
            raise ConfigError("compile.options", told)
        import torch._dynamo

        if backend not in torch._dynamo.list_backends(None):
            raise unknown_name("compile.backend", "backend", backend, torch._dynamo.list_backends())
        if options and backend == "inductor":
            from torch._inductor import list_options

            for option in options.keys() - set(list_options()):
                raise unknown_name(f"compile.options.{option}", "option of inductor", option, list_options())
        # torch refuses mode and options together, and `default` is what it takes for neither.
        self._arguments = {
            "mode": None if options else mode,
            "options": dict(options) if options else None,
            "backend": backend,
            "fullgraph": fullgraph,
            "dynamic": dynamic,
        }
        self._compiles_updates = optimizer
        self._first_metric = 0
        self._first_break = 0

    def apply(self, task: nn.Module, *, retains_graph: bool) -> None:
        """Compile on the first call. Starts the account."""
        import torch._dynamo
        import torch._functorch.config as autograd
        from torch._dynamo import utils

        # timm.optim raises this limit to a million on import, and a recompile storm would go unnoticed.
        torch._dynamo.config.recompile_limit = 8
        if retains_graph:
            autograd.donated_buffer = False  # else the first pass may write over what the next one needs
        utils.set_compilation_metrics_limit(100_000)
        self._first_metric = len(utils.get_compilation_metrics())
        self._first_break = len(utils.graph_break_reasons)
        task.compile(**self._arguments)

    def update_of(self, optimizer: Optimizer, scheduled: Collection[str]) -> Step:
        if not self._compiles_updates:
            return EagerUpdate(optimizer)
        return compiled_update(optimizer, scheduled, {"backend": self._arguments["backend"]})

    def report(self) -> CompileReport:
        """The account so far."""
        from torch._dynamo import utils

        metrics = utils.get_compilation_metrics()[self._first_metric :]
        breaks = utils.graph_break_reasons[self._first_break :]
        return CompileReport(
            graphs=sum(
                1 for m in metrics if m.is_forward is not False and m.graph_op_count and not m.fail_type
            ),
            seconds=sum(m.duration_us or 0 for m in metrics) / 1e6,
            graph_breaks=[
                Incident(b.reason, _user_line(b.user_stack)) for b in breaks if not _is_of_torch(b.user_stack)
            ],
            recompiles=[
                Incident(m.recompile_reason, f"{m.co_filename}:{m.co_firstlineno}")
                for m in metrics
                if m.recompile_reason
            ],
        )


def _user_line(stack: Any) -> str:
    """file:line of the innermost frame outside installed packages."""
    frames = [f for f in stack if "site-packages" not in f.filename] or list(stack)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown"


def _is_of_torch(stack: Any) -> bool:
    """Whether a break is the one that every optimizer of torch makes around its update, which is one graph."""
    return bool(stack) and stack[-1].filename.endswith("torch/optim/optimizer.py")
