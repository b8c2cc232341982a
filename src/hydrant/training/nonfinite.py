"""Checks for NaN and infinity, which end the run on all ranks before it saves, and for a loss without a gradient."""

import contextlib
from collections.abc import Generator, Mapping, Sequence

import torch
from torch import Tensor, nn

from hydrant.batch import is_inexact, tensors_of
from hydrant.config.user_errors import is_in_user_code
from hydrant.data import InMemorySource, LoaderSource, PositionedStream
from hydrant.data.base import SampleOrder
from hydrant.errors import HydrantError, NonFiniteError, log
from hydrant.optimizers.clipping import total_norm
from hydrant.training.trainer import Trainer

_MAX_UPDATES = 100  # that are read again


@contextlib.contextmanager
def explain_detached_loss() -> Generator[None]:
    """Turn torch's error about a loss that depends on no parameter into one that says so.

    The same error in user code, such as of a gradient penalty, is about another tensor and stays as it is.

    Raises:
        HydrantError: the loss is such a one.
    """
    try:
        yield
    except RuntimeError as error:
        if "does not require grad and does not have a grad_fn" not in str(error) or is_in_user_code(error):
            raise
        message = "the loss depends on no parameter of the model, so it has no gradient"
        remedy = "remove detach(), item(), argmax() or torch.no_grad() from the loss and the model"
        raise HydrantError(message, remedy=remedy) from error


def check_finite(trainer: Trainer) -> None:
    """Check, before a checkpoint is saved, what it will hold. Synchronises with the device; all ranks call it.

    Raises:
        NonFiniteError: a metric, a weight or a buffer is NaN or infinite on some rank; raised on all ranks.
    """
    metric = trainer.meter.first_non_finite()
    problems = [
        f"train/{metric}" if metric is not None else None,
        _find_non_finite(trainer.task, trainer.task.state_dict()),
        _find_non_finite(trainer.model, trainer.plan.averaging.state_dict()),
    ]
    per_rank = trainer.plan.world.all_gather(next(filter(None, problems), None))
    first = next(filter(None, per_rank), None)
    if first is not None:
        raise non_finite_error(trainer, first, [problem is not None for problem in per_rank])


def _find_non_finite(module: nn.Module, state: Mapping[str, Tensor]) -> str | None:
    """Return what kind of tensor in a module's state is not finite. A buffer may hold infinity, such as a mask does."""
    names = {name for name, _ in module.named_buffers()}
    floats = {name: value for name, value in state.items() if is_inexact(value)}
    has_nan = [value.isnan().any() for name, value in floats.items() if name in names]
    if not total_norm([value for name, value in floats.items() if name not in names]).isfinite():
        return "a parameter"
    return "a buffer" if has_nan and bool(torch.stack(has_nan).any()) else None


def non_finite_error(trainer: Trainer, name: str, is_here: Sequence[bool]) -> NonFiniteError:
    """Return the error that all ranks raise. `is_here` has a flag per rank; if only some are set, it names those."""
    ranks = [str(rank) for rank, here in enumerate(is_here) if here]
    where = "" if len(ranks) in (0, len(is_here)) else f" on rank {', '.join(ranks)}"
    cause = trainer.plan.world.first(_in_samples(trainer))
    return NonFiniteError(name, trainer.pace.logged_at, trainer.state.num_updates, where, cause)


def _in_samples(trainer: Trainer) -> str | None:
    """Read the samples since the last log point again, and return the first one with NaN or infinity, if any.

    A stream whose position is saved cannot be read again.
    """
    if isinstance(trainer.stream, PositionedStream):
        return None
    last = trainer.state.num_updates
    try:
        for num_updates in range(max(trainer.pace.logged_at, last - _MAX_UPDATES), last):
            positions = trainer.plan.spec.positions(num_updates)
            batches = trainer.stream.micro_batches(num_updates)
            for position, batch in zip(positions, batches, strict=True):
                for part, tree in zip(("inputs", "targets"), batch, strict=True):
                    floats = [t for t in tensors_of(tree) if is_inexact(t) and t.ndim]
                    rows = [(~t.isfinite()).unsqueeze(-1).flatten(1).any(1) for t in floats]
                    wrong = next((of_tensor for of_tensor in rows if of_tensor.any()), None)
                    if wrong is not None:
                        sample = _name(trainer, position + int(wrong.int().argmax()))
                        fault = f"The {part} of {sample}, of update {num_updates + 1}, hold NaN or infinity"
                        return f"{fault}: correct the data, or leave this sample out"
    except HydrantError as error:  # what became NaN is the error to show
        log.warning("the samples cannot be read again: %s", error)
    return None


def _name(trainer: Trainer, position: int) -> str:
    """Return the name of the training sample at a place of the stream."""
    source, seed = trainer.plan.train, trainer.plan.spec.seed
    if not isinstance(source, InMemorySource | LoaderSource):  # which shuffle alike
        return f"the sample at place {position:,} of the stream"
    draw = SampleOrder(seed, source.num_samples, torch.device("cpu")).draws(position, 1)
    index = int(draw) % source.num_samples
    return source.name_of(index) if isinstance(source, LoaderSource) else f"training sample {index}"
