"""Is what was compiled what was written? The first loss and gradients, compiled and eager, on the same samples."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hydrant import seeding
from hydrant.compilation import user_line
from hydrant.errors import CompileError, CompileMismatch, location
from hydrant.logs import log
from hydrant.memory import is_out_of_memory
from hydrant.norms import differs
from hydrant.parts import Run

_SHOWN = 5  # names of parameters in an error


@dataclass(frozen=True)
class Gradients:
    """The loss of one micro-batch, shape (), and its gradients by parameter."""

    loss: Tensor
    gradients: dict[str, Tensor]


def try_compiled(run: Run) -> None:
    """Compile by running the first micro-batch of the coming update, as `check_compiled` does.

    Raises:
        CompileError: what that raised, unless the run may go on eager.
    """
    if not run.compilation.is_on:
        return
    try:
        check_compiled(run)
    except CompileError as error:
        told = str(error).rstrip(".")
        if not run.compilation.falls_back:
            raise type(error)(f"{told}. compile=eager, or compile.on_failure=fallback, goes on") from error
        if run.world.is_rank_zero:
            log.warning("%s. Going on eager", told)
        run.compilation.give_up()


def check_compiled(run: Run) -> None:
    """Run the first micro-batch of the coming update compiled; compare with eager where that is asked for.

    Leaves everything as it was: gradients, buffers, random streams. What a rank finds wrong ends it on all.

    Raises:
        CompileError: it cannot be compiled, or nothing was.
        CompileMismatch: it computes something else.
    """
    try:
        compiled, failed = _compiled_gradients(run), None
    except CompileError as error:
        compiled, failed = None, error
    told = _told_by_any(run, None if failed is None else str(failed))
    if compiled is None or told is not None:
        raise failed or CompileError(told)
    if run.compilation.checks:
        with run.compilation.eagerly():
            _check_equal(first_gradients(run), compiled, run)


def _compiled_gradients(run: Run) -> Gradients:
    try:
        with warnings.catch_warnings():
            # Dynamo looks at every input of a graph, also at those in the middle of a model.
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
            compiled = first_gradients(run)
    except Exception as error:  # a backend raises anything
        if is_out_of_memory(error):
            raise
        raise CompileError(_told(error)) from error
    run.compilation.follow(run.state.num_updates)
    report = run.compilation.report()
    if not report.graphs:
        why = f": {report.graph_breaks[0]}" if report.graph_breaks else ". Try another compile.scope"
        raise CompileError(f"nothing was compiled: torch.compile found no graph in this task{why}")
    return compiled


def check_repeatable(run: Run) -> None:
    """Raises CompileMismatch where a second call of the eager task gives something else than the first."""
    with run.compilation.eagerly():
        apart = _difference(first_gradients(run), first_gradients(run), run.precision.tolerance, "two calls")
    apart = _told_by_any(run, apart)
    if apart is not None:
        raise CompileMismatch(f"the task gives something else in each call, also eager: {apart}")


def _check_equal(eager: Gradients, compiled: Gradients, run: Run) -> None:
    if not bool(eager.loss.isfinite()):
        log.warning("the first loss is %s, so compiled and eager cannot be compared", float(eager.loss))
    apart = _difference(eager, compiled, run.precision.tolerance, "compiled and eager")
    apart = _told_by_any(run, apart)
    if apart is not None:
        check_repeatable(run)
        raise CompileMismatch(apart)


def _told_by_any(run: Run, told: str | None) -> str | None:
    """What the first rank says that has something to say: ranks that go on in two ways would wait for each other."""
    return next((told for told in run.world.gather(told) if told is not None), None)


def _told(error: Exception) -> str:
    head, _, code = str(error).partition("from user code:")
    reason = " ".join(head.strip().split("\n\n")[0].split())
    return f"the task cannot be compiled: {type(error).__name__}: {reason} (at {user_line(code) or location(error)})"


def first_gradients(run: Run) -> Gradients:
    """The loss and the gradients of the first micro-batch of the coming update; leaves no trace."""
    task: Any = run.task
    buffers = [buffer.clone() for buffer in task.buffers()]
    num_updates = run.state.num_updates
    batch = next(iter(run.stream.micro_batches(num_updates)))
    mixed = run.mixing(batch, run.seed, num_updates, run.world.rank)
    seeding.seed_micro_step(run.seed, num_updates, run.world.rank, run.world.device)
    task.zero_grad(set_to_none=True)
    with run.precision.autocast():
        outcome = task(run.precision.cast(mixed))
    run.optimization.backward(outcome, run.loss_weight)
    gradients = {name: p.grad.clone() for name, p in task.named_parameters() if p.grad is not None}
    task.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, before in zip(task.buffers(), buffers, strict=True):
            buffer.copy_(before)
    return Gradients(outcome.total_loss().detach(), gradients)


def _difference(eager: Gradients, other: Gradients, tolerance: float, between: str) -> str | None:
    """What differs by more than `tolerance`, relative to its norm; None where nothing does."""
    one, two = float(other.loss), float(eager.loss)
    if differs(eager.loss, other.loss, tolerance * max(abs(two), 1e-3)):
        return f"the loss is {one:.6g} and {two:.6g} ({between}), more apart than rounding explains"
    norms = {name: float(g.double().norm()) for name, g in eager.gradients.items()}
    least = 1e-3 * max(norms.values(), default=0.0)  # rounding of the large ones is seen in the small ones
    apart: dict[str, float] = {}
    for name, norm in norms.items():
        own = other.gradients.get(name, torch.zeros_like(eager.gradients[name]))
        if differs(eager.gradients[name], own, tolerance * max(norm, least)):
            apart[name] = float((eager.gradients[name] - own).double().norm()) / max(norm, least)
    missing = other.gradients.keys() - norms.keys()
    if not (apart or missing):
        return None
    names = [f"{name} (by {size:.2g} of its norm)" for name, size in apart.items()] + sorted(missing)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"the gradients differ between {between}: {', '.join(names[:_SHOWN])}{more}"
