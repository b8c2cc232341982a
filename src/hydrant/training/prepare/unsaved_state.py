"""State of a model that a forward pass in training changes, and that no checkpoint holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hydrant.errors import log

_Numbers = dict[str, Tensor]
_SEED = 0


class UnsavedState:
    """What modules of a task keep outside of checkpoints: numbers, tensors and buffers with `persistent=False`."""

    def __init__(self, task: nn.Module) -> None:
        self._task, self._before = task, _numbers(task)

    @torch.no_grad()
    def warn_of_changes(self, forward: Callable[[], object]) -> None:
        """Warn of what a first forward pass has changed, and another one on the same samples changes again.

        What the second pass computes again from the samples and the saved buffers, or has in a cache, is no state.
        """
        if not _changed(self._before, _numbers(self._task)):
            return
        saved = self._task.state_dict().keys()
        buffers = {name: buffer.clone() for name, buffer in self._task.named_buffers() if name in saved}
        values: list[_Numbers] = []
        for _ in range(2):
            torch.manual_seed(_SEED)
            for name, buffer in buffers.items():
                owner, _, own_name = name.rpartition(".")
                setattr(self._task.get_submodule(owner), own_name, buffer.clone())
            forward()
            values.append(_numbers(self._task))
        if names := _changed(*values):
            log.warning(
                "model: training changes %s, which no checkpoint holds: a run that continues, and evaluate, predict "
                "and export, begin with the first value; make it a buffer (register_buffer)",
                ", ".join(names),
            )


def _numbers(task: nn.Module) -> _Numbers:
    saved, numbers = task.state_dict().keys(), _Numbers()
    values = dict[str, Any]({name: value for name, value in task.named_buffers() if name not in saved})
    for path, module in task.named_modules():
        if type(module).get_extra_state is nn.Module.get_extra_state:  # else checkpoints hold what it gives
            values |= {f"{path}.{name}".lstrip("."): value for name, value in vars(module).items()}
    for name, value in values.items():
        if type(value) in (int, float):
            numbers[name] = torch.tensor(value, dtype=torch.float64)
        elif isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta:
            numbers[name] = value.detach().clone()
    return numbers


def _changed(one: _Numbers, other: _Numbers) -> list[str]:
    """Return the names of the values that both have, and that differ."""
    both = {name: (value, other[name]) for name, value in one.items() if name in other}
    return [name for name, pair in both.items() if not are_equal(*pair)]


def are_equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors have the same numbers. NaN is equal to itself."""
    if one.shape != other.shape or torch.equal(one, other):
        return one.shape == other.shape
    return one.is_floating_point() and torch.equal(*map(torch.nan_to_num, (one, other)))
