"""Checks that a compiled task computes what the eager task does: the loss and gradients of one micro-batch."""

import math
import warnings
from dataclasses import dataclass

from torch import Tensor

from hydrant import seeding
from hydrant.batch import as_real
from hydrant.errors import CompileError, CompileMismatch, first_few, log
from hydrant.optimizers.clipping import exceeds_distance, is_sharded
from hydrant.tasks.base import kept_buffers
from hydrant.training.compile.base import FAILURE_REMEDY, failure_message
from hydrant.training.costs import allocator_message, is_out_of_memory, reset_peak_memory
from hydrant.training.trainer import Trainer

_MAX_NAMES = 5  # parameters that an error lists
_TINY = 1e-300  # instead of a norm of 0
_SINGLE, _MAX_SINGLE = 5.0, 0.5
"""The largest difference of one parameter's gradient: a multiple of the tolerance, and a ratio of its norm. All
gradients together may differ by one tolerance. In bf16, rounding changes single gradients of a ResNet-18 by up to 0.04
of their norm.
"""


@dataclass(frozen=True)
class Gradients:
    """The loss of one micro-batch, shape (), and its gradients by parameter name, on the host unless sharded."""

    loss: Tensor
    gradients: dict[str, Tensor]


def try_compiled(trainer: Trainer) -> None:
    """Run `check_compiled`, if the task is compiled. If that fails and the config allows it, continue eager.

    The memory that this takes does not count for the run's peak.

    Raises:
        CompileError: the check failed, and `compile.on_failure` is not `fallback`.
    """
    compilation = trainer.plan.compilation
    if not compilation.is_on:
        return
    try:
        check_compiled(trainer)
        reset_peak_memory(trainer.plan.world.device)
    except CompileError as error:
        message = str(error).rstrip(".")
        if not compilation.falls_back:
            raise type(error)(message, remedy=FAILURE_REMEDY) from error
        if trainer.plan.world.is_rank_zero:
            log.warning("%s. Continuing eager", message)
        compilation.disable()


def check_compiled(trainer: Trainer) -> None:
    """Compile the task by running the next micro-batch; compare it with the eager task if the config says so.

    The eager task may need more memory than the compiled one. If it does not fit, nothing is compared. Gradients,
    buffers and random states are left as they were. An error of one rank is raised on all ranks.

    Raises:
        CompileError: the task cannot be compiled, or nothing in it was compiled.
        CompileMismatch: the compiled task computes something else.
    """
    compiled = failure = None
    try:
        compiled = _compiled_gradients(trainer)
    except CompileError as error:
        failure = error
    message = trainer.plan.world.first(failure and str(failure))
    if compiled is None or message is not None:
        raise failure or CompileError(message or "")
    if trainer.plan.compilation.checks:
        _check_equal(_eager_gradients(trainer), compiled, trainer)


def check_repeatable(trainer: Trainer) -> None:
    """Check that two calls of the eager task give the same loss and gradients.

    Raises:
        CompileMismatch: they differ.
    """
    with trainer.plan.compilation.force_eager():
        first, second = first_gradients(trainer), first_gradients(trainer)
    message = difference(first, second, trainer.plan.precision.tolerance, "two calls")
    message = trainer.plan.world.first(message)
    if message is not None:
        raise CompileMismatch(f"the eager task, too, gives another result in each call: {message}")


def first_gradients(trainer: Trainer) -> Gradients:
    """Return the loss and gradients of the next micro-batch; leave gradients and buffers as they were."""
    plan, task, num_updates = trainer.plan, trainer.task, trainer.state.num_updates
    batch = trainer.first_batch()
    seeding.seed_micro_step(plan.spec.seed, num_updates, plan.world.rank, plan.world.device)
    task.zero_grad(set_to_none=True)
    with kept_buffers(task):
        with plan.precision.autocast():
            outcome = task(plan.precision.cast(batch))
        trainer.optimizers.backward(outcome, trainer.loss_weight)
    gradients = {name: _kept(p.grad) for name, p in task.named_parameters() if p.grad is not None}
    task.zero_grad(set_to_none=True)
    return Gradients(outcome.total_loss().detach(), gradients)


def _kept(gradient: Tensor) -> Tensor:
    """Return a copy, which takes no memory of the device if it can be on the host."""
    return gradient.clone() if is_sharded(gradient) else gradient.to("cpu", copy=True)


def _eager_gradients(trainer: Trainer) -> Gradients | None:
    """Return the first gradients of the eager task; None on all ranks if one of them runs out of memory."""
    gradients = failure = None
    try:
        with trainer.plan.compilation.force_eager():
            gradients = first_gradients(trainer)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        failure = allocator_message(error)
        trainer.task.zero_grad(set_to_none=True)
    failure = trainer.plan.world.first(failure)
    if failure is None:
        return gradients
    if trainer.plan.world.is_rank_zero:
        message = "compile.check: the eager task does not fit into memory, so nothing is compared (%s)"
        log.warning(message, failure)
    return None


def _compiled_gradients(trainer: Trainer) -> Gradients:
    try:
        with warnings.catch_warnings():
            # Dynamo reads `.grad` of every input of a graph, also of activations inside a model.
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
            compiled = first_gradients(trainer)
    except CompileError:
        raise
    except Exception as error:  # a backend may raise anything
        if is_out_of_memory(error):
            raise
        raise CompileError(failure_message(error)) from error
    trainer.plan.compilation.check_recompiles(trainer.state.num_updates)
    report = trainer.plan.compilation.report()
    if not report.graphs:
        why = f": {report.graph_breaks[0]}" if report.graph_breaks else ""
        message = f"nothing was compiled: torch.compile found no graph in this task{why}"
        raise CompileError(message, remedy="" if why else "Try another compile.scope")
    return compiled


def _check_equal(eager: Gradients | None, compiled: Gradients, trainer: Trainer) -> None:
    if eager is None:
        return
    if not bool(eager.loss.isfinite()):
        log.warning("the first loss is %s, so compiled and eager cannot be compared", float(eager.loss))
    tolerance = trainer.plan.precision.tolerance
    message = trainer.plan.world.first(difference(eager, compiled, tolerance, "compiled and eager"))
    if message is not None:
        check_repeatable(trainer)
        raise CompileMismatch(message)


def difference(eager: Gradients, other: Gradients, tolerance: float, between: str) -> str | None:
    """Describe what differs by more than the tolerance of a precision; return None if nothing does."""
    eager_loss, other_loss = float(eager.loss), float(other.loss)
    if exceeds_distance(eager.loss, other.loss, tolerance * max(abs(eager_loss), 1e-3)):
        values = f"{other_loss:.6g} and {eager_loss:.6g} ({between})"
        return f"the loss is {values}, which differ by more than rounding"
    finite = {name: g for name, g in eager.gradients.items() if bool(g.isfinite().all())}
    norms = {name: float(as_real(g).double().norm()) for name, g in finite.items()}
    least = 1e-3 * max(norms.values(), default=0.0)  # small gradients carry the rounding of large ones
    distances = {
        name: float(as_real(g - other.gradients.get(name, 0)).double().norm()) for name, g in finite.items()
    }
    ratios = {name: distance / max(norms[name], least, _TINY) for name, distance in distances.items()}
    differing = [name for name, ratio in ratios.items() if not ratio <= min(_SINGLE * tolerance, _MAX_SINGLE)]
    if not differing and math.hypot(*distances.values()) > tolerance * math.hypot(*norms.values()):
        differing = sorted(distances, key=distances.__getitem__, reverse=True)
    missing = other.gradients.keys() - eager.gradients.keys()
    if not (differing or missing):
        return None
    names = [f"{name} (by {ratios[name]:.2g} of its norm)" for name in differing] + sorted(missing)
    return f"the gradients differ between {between}: {first_few(names, _MAX_NAMES)}"
