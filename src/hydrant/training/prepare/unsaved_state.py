"""What a forward pass in training leaves in a model for the next one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]

from hydrant import seeding
from hydrant.batch import Outcome, as_real, is_inexact
from hydrant.errors import log

T = TypeVar("T")
_Numbers = dict[str, Tensor]
_SEED = 0


def written_buffers(task: nn.Module, forward: Callable[[], tuple[T, Outcome]]) -> tuple[T, list[str]]:
    """Make a forward pass in training; return the first thing that it returns, and the names of the buffers that it
    changes, without the statistics of batch norms.

    Warn if the loss of another pass depends on numbers, tensors and buffers that the first one changes and that no
    checkpoint holds. It has the same samples, random numbers and saved buffers.
    """
    buffers = _copies(dict(task.named_buffers()))
    kept, saved = _not_saved(task), task.state_dict().keys()
    seeding.seed_process(_SEED)
    first, outcome = forward()
    written = _changed(buffers, _copies(dict(task.named_buffers())))
    if names := _changed(kept, _not_saved(task)):
        for name in buffers.keys() & saved:
            owner, _, own_name = name.rpartition(".")
            setattr(task.get_submodule(owner), own_name, buffers[name])
        seeding.seed_process(_SEED)
        if not are_equal(outcome.total_loss(), forward()[1].total_loss()):
            log.warning(
                "model: training changes %s, which no checkpoint holds: a run that continues, and evaluate, predict "
                "and export, begin with the first value; make it a buffer (register_buffer)",
                ", ".join(names),
            )
    norms = [f"{path}." for path, module in task.named_modules() if isinstance(module, _NormBase)]
    return first, [name for name in written if not name.startswith(tuple(norms))]


def _not_saved(task: nn.Module) -> _Numbers:
    """Return the numbers and tensors of a task that no checkpoint holds."""
    saved = task.state_dict().keys()
    values = dict[str, Any]({name: value for name, value in task.named_buffers() if name not in saved})
    for path, module in task.named_modules():
        if type(module).get_extra_state is nn.Module.get_extra_state:  # else checkpoints hold what it gives
            values |= {f"{path}.{name}".lstrip("."): value for name, value in vars(module).items()}
    return _copies(values)


def _copies(values: Mapping[str, Any]) -> _Numbers:
    """Return the numbers and tensors that can be compared, copied."""
    numbers = _Numbers()
    for name, value in values.items():
        if type(value) in (int, float):
            numbers[name] = torch.tensor(value, dtype=torch.float64)
        elif isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta:
            numbers[name] = value.detach().clone()
    return numbers


def _changed(before: _Numbers, now: _Numbers) -> list[str]:
    """Return the names of the values that are new or others."""
    return [name for name, value in now.items() if name not in before or not are_equal(before[name], value)]


def are_equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same numbers. NaN is equal to itself."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    if torch.equal(one, other):
        return True
    return is_inexact(one) and torch.equal(*(torch.nan_to_num(as_real(tensor)) for tensor in (one, other)))
