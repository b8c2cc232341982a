"""Checks of what torch.compile does: what it compiled, and that a compiled task computes what the eager one does.

The monitor reads Dynamo's internal metrics, which have the same form in torch 2.11 to 2.15.
"""

import math
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, cast

from torch import Tensor
from torch._dynamo import utils  # noqa: PLC2701  # what it has counted

from hydrant import seeding
from hydrant.batch import as_real
from hydrant.errors import CompileError, CompileMismatch, first_few, innermost, location, log
from hydrant.optimizers.kernels import exceeds_distance, is_sharded
from hydrant.tasks.base import kept_buffers
from hydrant.training.compilation import Compilation, CompileReport, Gradients, Incident
from hydrant.training.costs import allocator_message, is_out_of_memory
from hydrant.training.trainer import Plan, Trainer

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')
_STEP_FILE = "compile/compiled_step.py"  # contains the function that a compiled optimizer step begins with


class CompileMonitor:
    """Collects what this process compiles from now on."""

    def __init__(self) -> None:
        utils.set_compilation_metrics_limit(100_000)
        self._first_metric = self._num_metrics = len(utils.get_compilation_metrics())
        self._num_breaks = len(utils.graph_break_reasons)
        self._last_counts: tuple[int, int] | None = None
        self._cache = _cache_counts()
        self._recorded = CompileReport()  # without what torch counts
        self._cold_seconds: float | None = None

    def has_news(self) -> bool:
        """Return whether anything was compiled since the last call. Reads two counters only."""
        # Two counters, because with fullgraph Dynamo counts no frames.
        counts = (utils.counters["frames"]["total"], utils.counters["stats"]["unique_graphs"])
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
        metrics, breaks = utils.get_compilation_metrics(), utils.graph_break_reasons
        if len(breaks) < self._num_breaks:  # torch._dynamo.reset() has cleared them
            self._num_breaks = 0
        new = metrics[self._num_metrics :]
        broken = [
            _break_incident(b.reason, user_line((f.filename, f.lineno) for f in b.user_stack), num_updates)
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
    location = user_line(parse_frames(reason)) or function
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
    where = user_line(parse_frames(code)) or location(error)
    return f"the task cannot be compiled: {type(error).__name__}: {reason} (at {where})"


def user_line(frames: Iterable[tuple[str, int | None]]) -> str:
    """Return file:line of the innermost frame of user code, or "" if there are no frames."""
    file, line = innermost(frames)
    return "" if line is None else f"{file}:{line}"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else text


def _cache_counts() -> dict[str, int]:
    """Return how many graphs Inductor found in its cache, and how many it had to compile."""
    inductor = utils.counters["inductor"]
    misses = inductor["fxgraph_cache_miss"] + inductor["fxgraph_cache_bypass"]
    return {"hits": inductor["fxgraph_cache_hit"], "misses": misses}


_MAX_NAMES = 5  # parameters that an error lists
_TINY = 1e-300  # instead of a norm of 0
_SINGLE, _MAX_SINGLE = 5.0, 0.5
"""The largest difference of one parameter's gradient: a multiple of the tolerance, and a ratio of its norm. All
gradients together may differ by one tolerance. In bf16, rounding changes single gradients of a ResNet-18 by up to 0.04
of their norm.
"""


def first_gradients(trainer: Trainer) -> Gradients:
    """Return the loss and gradients of the next micro-batch; leave gradients and buffers as they were."""
    plan, task, num_updates = trainer.plan, cast("Any", trainer.task), trainer.state.num_updates
    batch = trainer.first_batch()
    seeding.seed_micro_step(plan.spec.seed, num_updates, plan.world.rank, plan.world.device)
    task.zero_grad(set_to_none=True)
    try:
        losses = list[Tensor]()
        for turn in trainer.optimizers.turns:
            task.turn = turn.name or None
            with kept_buffers(task):
                with plan.precision.autocast():
                    outcome = task(plan.precision.cast(batch))
                turn.backward(outcome, trainer.loss_weight)
                if plan.compilation.reuses_memory:
                    turn.clone_gradients()
            losses.append(outcome.total_loss().detach())
        plan.compilation.check_recompiles(num_updates, is_planned=len(losses) > 1)  # each turn has a graph
        gradients = {name: _kept(p.grad) for name, p in task.named_parameters() if p.grad is not None}
    finally:
        task.turn = None
        task.zero_grad(set_to_none=True)
    return sum(losses[1:], losses[0]), gradients


def _kept(gradient: Tensor) -> Tensor:
    """Return a copy, which takes no memory of the device if it can be on the host."""
    return gradient.clone() if is_sharded(gradient) else gradient.to("cpu", copy=True)


FirstGradients = Callable[[], Gradients]


def check_compiled(
    compilation: Compilation, first_gradients: FirstGradients, plan: Plan, num_updates: int, *, compares: bool
) -> None:
    """Compile the task by its first gradients, and compare these with the eager ones. All ranks call it.

    The eager task may need more memory than the compiled one. If it does not fit, nothing is compared. An error of one
    rank is raised on all ranks.

    Raises:
        CompileError, CompileMismatch: as `Compilation.check_first`.
    """
    compiled = failure = None
    try:
        compiled = _compiled_gradients(compilation, first_gradients, num_updates)
    except CompileError as error:
        failure = error
    message = plan.world.first(str(failure) if failure else None)
    if compiled is None or message is not None:
        raise failure or CompileError(message or "")
    if not compares or (eager := _eager_gradients(first_gradients, plan)) is None:
        return
    if not bool(eager[0].isfinite()):
        log.warning("the first loss is %s, so compiled and eager cannot be compared", float(eager[0]))
    message = plan.world.first(difference(eager, compiled, plan.precision.tolerance, "compiled and eager"))
    if message is not None:
        check_repeatable(first_gradients, plan)
        raise CompileMismatch(message)


def check_repeatable(first_gradients: FirstGradients, plan: Plan) -> None:
    """Check that two calls of the eager task give the same loss and gradients.

    Raises:
        CompileMismatch: they differ.
    """
    with plan.compilation.force_eager():
        first, second = first_gradients(), first_gradients()
    message = plan.world.first(difference(first, second, plan.precision.tolerance, "two calls"))
    if message is not None:
        raise CompileMismatch(f"the eager task, too, gives another result in each call: {message}")


def _eager_gradients(first_gradients: FirstGradients, plan: Plan) -> Gradients | None:
    """Return the first gradients of the eager task; None on all ranks if one of them runs out of memory."""
    gradients = failure = None
    try:
        with plan.compilation.force_eager():
            gradients = first_gradients()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        failure = allocator_message(error)
    failure = plan.world.first(failure)
    if failure is None:
        return gradients
    if plan.world.is_rank_zero:
        message = "compile.check: the eager task does not fit into memory, so nothing is compared (%s)"
        log.warning(message, failure)
    return None


def _compiled_gradients(
    compilation: Compilation, first_gradients: FirstGradients, num_updates: int
) -> Gradients:
    try:
        with warnings.catch_warnings():
            # Dynamo reads `.grad` of every input of a graph, also of activations inside a model.
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
            compiled = first_gradients()
    except CompileError:
        raise
    except Exception as error:  # a backend may raise anything
        if is_out_of_memory(error):
            raise
        raise CompileError(failure_message(error)) from error
    compilation.check_recompiles(num_updates)
    report = compilation.report()
    if not report.graphs:
        why = f": {report.graph_breaks[0]}" if report.graph_breaks else ""
        message = f"nothing was compiled: torch.compile found no graph in this task{why}"
        raise CompileError(message, remedy="" if why else "Try another compile.scope")
    return compiled


def difference(eager: Gradients, other: Gradients, tolerance: float, between: str) -> str | None:
    """Describe what differs by more than the tolerance of a precision; return None if nothing does."""
    (eager_loss, eager_gradients), (other_loss, other_gradients) = eager, other
    if exceeds_distance(eager_loss, other_loss, tolerance * max(abs(float(eager_loss)), 1e-3)):
        values = f"{float(other_loss):.6g} and {float(eager_loss):.6g} ({between})"
        return f"the loss is {values}, which differ by more than rounding"
    finite = {name: g for name, g in eager_gradients.items() if bool(g.isfinite().all())}
    norms = {name: float(as_real(g).double().norm()) for name, g in finite.items()}
    least = 1e-3 * max(norms.values(), default=0.0)  # small gradients carry the rounding of large ones
    distances = {
        name: float(as_real(g - other_gradients.get(name, 0)).double().norm()) for name, g in finite.items()
    }
    ratios = {name: distance / max(norms[name], least, _TINY) for name, distance in distances.items()}
    differing = [name for name, ratio in ratios.items() if not ratio <= min(_SINGLE * tolerance, _MAX_SINGLE)]
    if not differing and math.hypot(*distances.values()) > tolerance * math.hypot(*norms.values()):
        differing = sorted(distances, key=distances.__getitem__, reverse=True)
    missing = other_gradients.keys() - eager_gradients.keys()
    if not (differing or missing):
        return None
    names = [f"{name} (by {ratios[name]:.2g} of its norm)" for name in differing] + sorted(missing)
    return f"the gradients differ between {between}: {first_few(names, _MAX_NAMES)}"
