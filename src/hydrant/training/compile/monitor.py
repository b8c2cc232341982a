"""Counts the graphs, graph breaks and recompilations of torch.compile in this process, with their causes.

Reads Dynamo's internal metrics, which have the same form in torch 2.11 to 2.15.
"""

import linecache
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from hydrant.errors import innermost, location

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
        return _code_at(self.location)

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
            if not _is_optimizer_break(b.user_stack)
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


def _code_at(location: str) -> str:
    file, _, line = location.rpartition(":")
    return linecache.getline(file, int(line)).strip() if line.isdigit() else ""


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else text


def _location(stack: Any) -> str:
    """Return file:line of the innermost frame of user code."""
    file, line = innermost((frame.filename, frame.lineno) for frame in stack)
    return f"{file}:{line}"


def _is_optimizer_break(stack: Any) -> bool:
    """Return whether this is the harmless graph break that torch makes around every `Optimizer.step`."""
    return bool(stack) and stack[-1].filename.endswith("torch/optim/optimizer.py")


def _cache_counts() -> dict[str, int]:
    """Return how many graphs Inductor found in its cache, and how many it had to compile."""
    from torch._dynamo.utils import counters

    inductor = counters["inductor"]
    misses = inductor["fxgraph_cache_miss"] + inductor["fxgraph_cache_bypass"]
    return {"hits": inductor["fxgraph_cache_hit"], "misses": misses}
