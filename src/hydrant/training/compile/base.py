"""What the loop knows of torch.compile: its interface and the step's, both also eager, and what it has compiled.

The monitor reads Dynamo's internal metrics, which have the same form in torch 2.11 to 2.15.
"""

import contextlib
import linecache
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,  # pyright: ignore[reportPrivateUsage]
    _global_optimizer_pre_hooks,  # pyright: ignore[reportPrivateUsage]
)

from hydrant.batch import Batch, Outcome
from hydrant.errors import innermost, location, unknown_name
from hydrant.optimizers.kernels import step_fused
from hydrant.training.distributed.ddp import Collective
from hydrant.training.distributed.world import World


class EagerStep:
    """Calls `optimizer.step()`, or only the function inside torch's wrapper of it, or only its fused kernel.

    torch wraps every `Optimizer.step` to call hooks and to name the step in a profile, and sorts the weights before it
    calls a kernel. On a small model that takes a tenth of an update. Both are skipped only if there are no hooks, no
    profiler and no wrapper of anybody else.
    """

    def __init__(self, optimizer: Optimizer, scheduled: Collection[str] = ()) -> None:
        del scheduled  # only a compiled step needs to know these fields
        self._optimizer = optimizer
        self._class_step: Any = None  # `type(optimizer).step` when it was last unwrapped
        self._unwrapped: Callable[[Optimizer], Any] | None = None

    def __call__(self) -> None:
        step: Any = type(self._optimizer).step
        if step is not self._class_step:
            self._class_step, self._unwrapped = step, unwrap_step(step)
        if self._unwrapped is None or _is_observed(self._optimizer):
            self._optimizer.step()
        elif not step_fused(self._optimizer):
            self._unwrapped(self._optimizer)

    @property
    def is_warming_up(self) -> bool:
        """Whether the next calls may compile as planned."""
        return True

    def disable(self) -> None:
        """Run eager from now on."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


_PROFILE_HOOK_CODE = Optimizer.profile_hook_step(Optimizer.step).__code__
"""The code of torch's wrapper, which identifies it: functools.wraps and proxies copy only its attributes."""


def unwrap_step(step: Any) -> Callable[[Optimizer], Any] | None:
    """Return the function inside torch's wrapper, or None if the outermost wrapper is not torch's."""
    if _is_disabled_by_dynamo(step):
        step = step._torchdynamo_orig_callable
    if type(step) is types.FunctionType and step.__code__ is _PROFILE_HOOK_CODE:
        return step.__wrapped__  # pyright: ignore[reportFunctionMemberAccess]
    return None


def _is_disabled_by_dynamo(step: Any) -> bool:
    """Return whether `step` is a wrapper of `torch.compiler.disable`.

    The first use of torch.compile in a process puts one around the step of SparseAdam and LBFGS. It only matters inside
    compiled code, which never calls an EagerStep. functools.wraps copies its attributes to other wrappers, but only the
    original has its own id in them.
    """
    return (
        type(step) is types.FunctionType
        and getattr(step, "_torchdynamo_disable", False)
        and getattr(step, "_torchdynamo_wrapper_id", None) == id(step)
    )


def _is_observed(optimizer: Any) -> bool:
    """Return whether hooks, a replaced `step` or a profiler need the whole `optimizer.step()`."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
        or "step" in vars(optimizer)
        or torch.autograd.profiler._is_profiler_enabled  # in any thread  # pyright: ignore[reportPrivateUsage]
        or torch.autograd._profiler_enabled()  # pyright: ignore[reportPrivateUsage]
    )


_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_STEP_FILE = "compile/compiled_step.py"  # contains the function that a compiled optimizer step begins with


@dataclass(frozen=True)
class Incident:
    """A graph break or a recompilation."""

    reason: str
    location: str  # file:line of the user's code
    guard: str | None  # the condition that failed; only for a recompilation
    num_updates: int  # completed updates at that time
    remedy: str  # Dynamo's hint; "" if it has none

    @property
    def code(self) -> str:
        """The line of code at `location`."""
        file, _, line = self.location.rpartition(":")
        return linecache.getline(file, int(line)).strip() if line.isdigit() else ""

    def __str__(self) -> str:
        return f"{self.location}: {self.guard or self.reason}"


@dataclass(frozen=True)
class CompileReport:
    """What torch.compile did in this process since the monitor was created."""

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


class CompileMonitor:
    """Collects what this process compiles from now on."""

    def __init__(self) -> None:
        from torch._dynamo import utils

        utils.set_compilation_metrics_limit(100_000)
        self._first_metric = self._num_metrics = len(utils.get_compilation_metrics())
        self._num_breaks = len(utils.graph_break_reasons)
        self._last_counts: tuple[int, int] | None = None
        self._cache = _cache_counts()
        self._recorded = CompileReport()  # without what torch counts
        self._cold_seconds: float | None = None

    def has_news(self) -> bool:
        """Return whether anything was compiled since the last call. Reads two counters only."""
        from torch._dynamo.utils import counters

        # Two counters, because with fullgraph Dynamo counts no frames.
        counts = (counters["frames"]["total"], counters["stats"]["unique_graphs"])
        last_counts, self._last_counts = self._last_counts, counts
        return counts != last_counts

    def read(
        self, num_updates: int, *, is_planned: bool = False, steps_are_planned: bool = True
    ) -> list[Incident]:
        """Record what happened since the last call, and return the recompilations that were not planned.

        Args:
            num_updates: completed updates.
            is_planned: all recompilations were planned.
            steps_are_planned: the recompilations of optimizer steps were planned.
        """
        from torch._dynamo import utils

        metrics, breaks = utils.get_compilation_metrics(), utils.graph_break_reasons
        if len(breaks) < self._num_breaks:  # torch._dynamo.reset() has cleared them
            self._num_breaks = 0
        new = metrics[self._num_metrics :]
        broken = [
            _break_incident(b.reason, _location(b.user_stack), num_updates)
            for b in breaks[self._num_breaks :]
            # Not the harmless break that torch makes around every `Optimizer.step`.
            if not (b.user_stack and b.user_stack[-1].filename.endswith("torch/optim/optimizer.py"))
        ]
        broken += [_skipped_frame(m, num_updates) for m in new if m.fail_type and not _hits_limit(m)]
        recompiled = [m for m in new if m.recompile_reason]
        limits = [_recompile_incident(m, num_updates) for m in recompiled if _hits_limit(m)]
        recompiles = [_recompile_incident(m, num_updates) for m in recompiled if not _hits_limit(m)]
        self._num_metrics, self._num_breaks = len(metrics), len(breaks)
        planned = [r for r in recompiles if is_planned or (steps_are_planned and r.location == _STEP_FILE)]
        unplanned = [r for r in recompiles if r not in planned]
        known = self._recorded
        self._recorded = replace(
            known,
            # A line that breaks the graph of one frame does so again in the next: report it once.
            graph_breaks=[*{b.location: b for b in reversed([*known.graph_breaks, *broken])}.values()][::-1],
            recompiles=[*known.recompiles, *unplanned],
            planned=[*known.planned, *planned],
            # With fullgraph torch raises at the limit, and again without it, for the same cause.
            limits=[*dict.fromkeys([*known.limits, *limits])],
        )
        if self._cold_seconds is None:  # only the first graphs were compiled
            self._cold_seconds = self.report().seconds
        return unplanned

    def report(self) -> CompileReport:
        """Return everything recorded so far."""
        from torch._dynamo import utils

        metrics = utils.get_compilation_metrics()[self._first_metric :]
        counts = _cache_counts()
        return replace(
            self._recorded,
            graphs=sum(
                m.is_forward is not False and bool(m.graph_op_count) and not m.fail_type for m in metrics
            ),
            seconds=sum(m.duration_us or 0 for m in metrics) / 1e6,
            cold_seconds=self._cold_seconds or 0.0,
            cache={key: counts[key] - self._cache[key] for key in counts},
        )


def _break_incident(reason: str, location: str, num_updates: int, suffix: str = "") -> Incident:
    explanation, hint = (re.search(rf"{part}: (.+)", reason) for part in ("Explanation", "Hint"))
    text = explanation[1].strip().rstrip(".") if explanation else _first_line(reason)
    return Incident(text + suffix, location, None, num_updates, hint[1].strip() if hint else "")


def _skipped_frame(metric: Any, num_updates: int) -> Incident:
    """Return the incident of a function that Dynamo leaves eager, because it breaks inside a loop, for example."""
    line = f"{metric.fail_user_frame_filename}:{metric.fail_user_frame_lineno}"
    location = line if metric.fail_user_frame_filename else f"{metric.co_filename}:{metric.co_firstlineno}"
    return _break_incident(str(metric.fail_reason), location, num_updates, f"; {metric.co_name} stays eager")


def _hits_limit(metric: Any) -> bool:
    return metric.fail_type == "FailOnRecompileLimitHit" or "limit exceeded" in (metric.fail_reason or "")


def _recompile_incident(metric: Any, num_updates: int) -> Incident:
    reason = str(metric.recompile_reason)
    function = f"{metric.co_filename}:{metric.co_firstlineno}" if metric.co_filename else "unknown"
    location = user_line(reason) or function
    if _STEP_FILE in reason or _STEP_FILE in (metric.co_filename or ""):
        location = _STEP_FILE
    guard = _first_line(reason).partition("  #")[0].strip()
    guard = guard.partition(": ")[2] or guard
    return Incident(_first_line(reason), location, guard, num_updates, "")


def parse_frames(text: str) -> list[tuple[str, int]]:
    """Return the file and line of each frame of a printed stack."""
    return [(m["file"], int(m["line"])) for m in _FRAME.finditer(text)]


def failure_message(error: Exception) -> str:
    """Return why a task cannot be compiled, and the line of the user's code, from an error of torch.compile."""
    head, _, code = str(error).partition("from user code:")
    reason = " ".join(head.strip().split("\n\n")[0].split())
    where = user_line(code) or location(error)
    return f"the task cannot be compiled: {type(error).__name__}: {reason} (at {where})"


def user_line(text: str) -> str:
    """Return file:line of the innermost frame of user code in a printed stack, or "" if it has no frames."""
    file, line = innermost(parse_frames(text))
    return "" if line is None else f"{file}:{line}"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else text


def _location(stack: Any) -> str:
    """Return file:line of the innermost frame of user code."""
    file, line = innermost((frame.filename, frame.lineno) for frame in stack)
    return f"{file}:{line}"


def _cache_counts() -> dict[str, int]:
    """Return how many graphs Inductor found in its cache, and how many it had to compile."""
    from torch._dynamo.utils import counters

    inductor = counters["inductor"]
    misses = inductor["fxgraph_cache_miss"] + inductor["fxgraph_cache_bypass"]
    return {"hits": inductor["fxgraph_cache_hit"], "misses": misses}


FAILURE_REMEDY = "Use compile=eager, or compile.on_failure=fallback to continue eager"


class Compilation:
    """Compiles a task and reports what was compiled; this one nothing. The builder calls `compilation(world)`."""

    def __init__(self, world: World) -> None:
        del world

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

    def optimizer_step(self, optimizer: Optimizer, scheduled: Collection[str]) -> EagerStep:
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


_NEEDS = {
    "onnxrt": ("onnxruntime", "onnxruntime"),
    "openxla": ("torch_xla", "torch_xla"),
    "openxla_eval": ("torch_xla", "torch_xla"),
    "tensorrt": ("torch_tensorrt", "torch_tensorrt"),
    "tvm": ("tvm", "apache-tvm"),
}
"""The module that a backend of torch.compile needs besides torch, and the package that installs it."""

_UNUSABLE = re.compile("minifier|_with_mode$")
"""Registered backends that need arguments of their own, which torch.compile does not pass."""


def backend_names() -> list[str]:
    """Return the backends of torch.compile, without those of torch's own tests."""
    import torch._dynamo

    names = torch._dynamo.list_backends(None)
    return [name for name in names if "TESTING_ONLY" not in name and not _UNUSABLE.search(name)]


def missing_package(backend: str) -> str | None:
    """Return how to install what a backend needs besides torch; None if it is there."""
    module, package = _NEEDS.get(backend, ("torch", "torch"))
    return None if find_spec(module) else f"needs {module}: pip install {package}"


def check_backend(backend: str) -> None:
    import torch._dynamo

    if backend not in torch._dynamo.list_backends(None) or _UNUSABLE.search(backend):
        raise unknown_name("compile.backend", "backend", backend, backend_names())
