"""NaN and infinity: found on one rank, they end all, before they are saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hydrant.errors import NonFiniteError
from hydrant.norms import total_norm
from hydrant.parts import Run


def check_finite(run: Run) -> None:
    """Refuse, on all ranks, to save what was computed from NaN or infinity on one; synchronises, as saving does."""
    name = run.meter.first_non_finite()
    kinds = [_spoilt(run.task, run.task.state_dict()), _spoilt(run.model, run.averaging.state_dict())]
    found = f"train/{name}" if name is not None else next(filter(None, kinds), None)
    names = run.world.gather(found)
    if any(names):
        raise not_finite(run, next(name for name in names if name), [name is not None for name in names])


def _spoilt(module: nn.Module, state: Mapping[str, Tensor]) -> str | None:
    """What of a module's state is not as it may be. A buffer may hold infinity from the start, such as a mask."""
    names = {name for name, _ in module.named_buffers()}
    floats = {name: value for name, value in state.items() if value.is_floating_point()}
    buffers = [value.isnan().any() for name, value in floats.items() if name in names]
    if not total_norm([value for name, value in floats.items() if name not in names]).isfinite():
        return "a parameter"
    return "a buffer" if buffers and bool(torch.stack(buffers).any()) else None


def not_finite(run: Run, name: str, is_here: Sequence[bool]) -> NonFiniteError:
    """The error of all ranks; where it is not on each of them, it says on which."""
    ranks = [str(rank) for rank, here in enumerate(is_here) if here]
    where = "" if len(ranks) in (0, len(is_here)) else f" on rank {', '.join(ranks)}"
    return NonFiniteError(name, run.pace.logged_at, run.state.num_updates, where)
