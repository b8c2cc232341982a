"""What torch.compile does in this process, as it happens: graphs, graph breaks, recompiles, and why.

Read from Dynamo's own metrics, which are the same from torch 2.11 to 2.15.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hydrant.compilation.remedies import remedy_for_break, remedy_for_recompile
from hydrant.errors import innermost

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_UPDATE = "compilation/update.py"  # where what is compiled of an update lies


@dataclass(frozen=True)
class Incident:
    """A graph break or a recompile."""

    reason: str
    location: str  # file:line of the user's code
    guard: str | None  # what did not hold any more; of a recompile
    num_updates: int  # completed when it happened
    remedy: str  # what to do about it

    @property
    def code(self) -> str:
        """The line of code at `location`."""
        return _code_at(self.location)

    def __str__(self) -> str:
        return f"{self.location}: {self.guard or self.reason}"


@dataclass(frozen=True)
class CompileReport:
    """What torch.compile did in this process since the account began."""

    graphs: int = 0
    seconds: float = 0.0
    cold_seconds: float = 0.0  # of it, for the first graphs
    graph_breaks: list[Incident] = field(default_factory=list)
    recompiles: list[Incident] = field(default_factory=list)
    planned: list[Incident] = field(
        default_factory=list
    )  # a second graph for evaluation, the update's first ones
    limits: list[Incident] = field(default_factory=list)
    """Where torch would not compile again: it is eager since then."""
    cache: Mapping[str, int] = field(default_factory=lambda: {"hits": 0, "misses": 0})

    def __str__(self) -> str:
        counts = {
            "graph": self.graphs,
            "graph break": len(self.graph_breaks),
            "recompile": len(self.recompiles),
        }
        counts |= {"part eager since torch's limit": len(self.limits)} if self.limits else {}
        told = ", ".join(f"{n} {what}{'' if n == 1 else 's'}" for what, n in counts.items())
        return f"{told}, {self.seconds:.1f} s, {self.cold_seconds:.1f} s of it before the first update"

    def summary(self) -> dict[str, float]:
        """The counts, as summary.json shows them."""
        return {
            "graphs": self.graphs,
            "graph_breaks": len(self.graph_breaks),
            "recompiles": len(self.recompiles),
            "seconds": self.seconds,
            "cold_seconds": self.cold_seconds,
        }

    def details(self) -> dict[str, Any]:
        """Everything, as compile_report.json shows it."""
        return asdict(self)


class Watch:
    """The account of a process, from when it is made."""

    def __init__(self) -> None:
        from torch._dynamo import utils

        utils.set_compilation_metrics_limit(100_000)
        self._first_metric = self._num_metrics = len(utils.get_compilation_metrics())
        self._num_breaks = len(utils.graph_break_reasons)
        self._seen: tuple[int, int] | None = None
        self._cache = _cache_counts()
        self._breaks: list[Incident] = []
        self._recompiles: list[Incident] = []
        self._planned: list[Incident] = []
        self._limits: list[Incident] = []
        self._cold_seconds: float | None = None

    def has_news(self) -> bool:
        """Whether anything was compiled since the last call; a look into two dictionaries."""
        from torch._dynamo.utils import counters

        # Frames are not counted with fullgraph, where each is a graph.
        seen = (counters["frames"]["total"], counters["stats"]["unique_graphs"])
        before, self._seen = self._seen, seen
        return seen != before

    def read(
        self, num_updates: int, *, is_planned: bool = False, plans_updates: bool = True
    ) -> list[Incident]:
        """Note what happened since the last call; the recompiles among it that nobody planned.

        Args:
            is_planned: all of them were planned.
            plans_updates: those of compiled updates were.
        """
        from torch._dynamo import utils

        metrics, breaks = utils.get_compilation_metrics(), utils.graph_break_reasons
        if len(breaks) < self._num_breaks:  # torch._dynamo.reset() has cleared them
            self._num_breaks = 0
        new = metrics[self._num_metrics :]
        broken = [
            _broken(b.reason, _user_line(b.user_stack), num_updates)
            for b in breaks[self._num_breaks :]
            if not _is_of_torch(b.user_stack)
        ]
        broken += [_left_out(m, num_updates) for m in new if m.fail_type and not _hits_limit(m)]
        # A line that breaks the graph of one frame is met again in the next.
        self._breaks = list({b.location: b for b in reversed([*self._breaks, *broken])}.values())[::-1]
        recompiled = [m for m in new if m.recompile_reason]
        self._limits += [_recompile(m, num_updates) for m in recompiled if _hits_limit(m)]
        found = [_recompile(m, num_updates) for m in recompiled if not _hits_limit(m)]
        self._num_metrics, self._num_breaks = len(metrics), len(breaks)
        planned = [f for f in found if is_planned or (plans_updates and f.location == _UPDATE)]
        self._planned += planned
        if self._cold_seconds is None:  # the first graphs are there
            self._cold_seconds = self.report().seconds
        unplanned = [f for f in found if f not in planned]
        self._recompiles += unplanned
        return unplanned

    def report(self) -> CompileReport:
        """The account so far."""
        from torch._dynamo import utils

        metrics = utils.get_compilation_metrics()[self._first_metric :]
        counts = _cache_counts()
        return CompileReport(
            graphs=sum(1 for m in metrics if _is_graph(m)),
            seconds=sum(m.duration_us or 0 for m in metrics) / 1e6,
            cold_seconds=self._cold_seconds or 0.0,
            graph_breaks=list(self._breaks),
            recompiles=list(self._recompiles),
            planned=list(self._planned),
            limits=list(self._limits),
            cache={key: counts[key] - self._cache[key] for key in counts},
        )


def _is_graph(metric: Any) -> bool:
    return metric.is_forward is not False and bool(metric.graph_op_count) and not metric.fail_type


def _broken(reason: str, location: str, num_updates: int, more: str = "") -> Incident:
    advice = remedy_for_break(reason, _code_at(location))
    explained = re.search(r"Explanation: (.+)", reason)
    told = explained[1].strip().rstrip(".") if explained else _first_line(reason)
    return Incident(told + more, location, None, num_updates, advice)


def _left_out(metric: Any, num_updates: int) -> Incident:
    """A function that stays eager from its beginning or from a graph break on: it breaks in a loop, say."""
    line = f"{metric.fail_user_frame_filename}:{metric.fail_user_frame_lineno}"
    location = line if metric.fail_user_frame_filename else f"{metric.co_filename}:{metric.co_firstlineno}"
    return _broken(str(metric.fail_reason), location, num_updates, f"; {metric.co_name} stays eager")


def _hits_limit(metric: Any) -> bool:
    return "limit exceeded" in (metric.fail_reason or "")


def _recompile(metric: Any, num_updates: int) -> Incident:
    reason = str(metric.recompile_reason)
    own = f"{metric.co_filename}:{metric.co_firstlineno}" if metric.co_filename else "unknown"
    location = user_line(reason) or own
    if _UPDATE in reason or _UPDATE in (metric.co_filename or ""):
        location = _UPDATE
    guard = _first_line(reason).partition("  #")[0].strip()
    guard = guard.partition(": ")[2] or guard
    return Incident(_first_line(reason), location, guard, num_updates, remedy_for_recompile(guard))


def frames_of(text: str) -> list[tuple[str, int]]:
    """The file and line of each frame of a printed stack."""
    return [(m["file"], int(m["line"])) for m in _FRAME.finditer(text)]


def user_line(text: str) -> str:
    """file:line of the innermost frame of a printed stack that its reader can change; "" where there is none."""
    file, line = innermost(frames_of(text))
    return "" if line is None else f"{file}:{line}"


def _code_at(location: str) -> str:
    file, _, line = location.rpartition(":")
    return linecache.getline(file, int(line)).strip() if line.isdigit() else ""


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else text


def _user_line(stack: Any) -> str:
    file, line = innermost((frame.filename, frame.lineno) for frame in stack)
    return f"{file}:{line}"


def _is_of_torch(stack: Any) -> bool:
    """Whether a break is the one that every optimizer of torch makes around its update, which is one graph."""
    return bool(stack) and stack[-1].filename.endswith("torch/optim/optimizer.py")


def _cache_counts() -> dict[str, int]:
    """How often Inductor found its code in the cache, and how often it had to write it."""
    from torch._dynamo.utils import counters

    inductor = counters["inductor"]
    misses = inductor["fxgraph_cache_miss"] + inductor["fxgraph_cache_bypass"]
    return {"hits": inductor["fxgraph_cache_hit"], "misses": misses}
