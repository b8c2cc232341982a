"""Checks for NaN and infinity. One rank that finds them ends the run on all ranks before anything is saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hydrant.errors import NonFiniteError
from hydrant.optimizers.norms import total_norm
from hydrant.training.trainer import Trainer


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
    floats = {name: value for name, value in state.items() if value.is_floating_point()}
    has_nan = [value.isnan().any() for name, value in floats.items() if name in names]
    if not total_norm([value for name, value in floats.items() if name not in names]).isfinite():
        return "a parameter"
    return "a buffer" if has_nan and bool(torch.stack(has_nan).any()) else None


def non_finite_error(trainer: Trainer, name: str, is_here: Sequence[bool]) -> NonFiniteError:
    """Return the error that all ranks raise. `is_here` has a flag per rank; if only some are set, it names those."""
    ranks = [str(rank) for rank, here in enumerate(is_here) if here]
    where = "" if len(ranks) in (0, len(is_here)) else f" on rank {', '.join(ranks)}"
    return NonFiniteError(name, trainer.pace.logged_at, trainer.state.num_updates, where)
