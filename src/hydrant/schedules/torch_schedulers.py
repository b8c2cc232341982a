"""Turn schedulers with a `step` method into functions of the update: torch's classes, and those of users.

`Replay` runs such a scheduler for the whole run on a substitute optimizer, whose param groups have the same fields but
no real parameters, and keeps all values that it writes. Therefore values can be read in any order and previewed, and
a resumed run computes them again instead of loading a state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class SchedulerBase(ABC):
    """Base class of schedulers that set one field of an optimizer's param groups from the number of completed updates.

    Subclasses implement `get_updated_values`. The interface is that of pytorch-accelerated's `SchedulerBase`.

    Raises:
        KeyError: A group lacks the field.
    """

    def __init__(self, optimizer: Optimizer, param_group_field: str = "lr") -> None:
        self.optimizer = optimizer
        self.param_group_field = param_group_field
        initial = f"initial_{param_group_field}"
        for group_idx, group in enumerate(optimizer.param_groups):
            if param_group_field not in group:
                name = type(optimizer).__name__
                raise KeyError(f"param_groups[{group_idx}] of {name} has no {param_group_field}")
            group.setdefault(initial, group[param_group_field])
        self.base_lr_values = [group[initial] for group in optimizer.param_groups]

    @abstractmethod
    def get_updated_values(self, num_updates: int) -> float | Sequence[float] | None:
        """Return the field's value for the next update after `num_updates` completed ones.

        One number sets all groups, a sequence sets each group, None changes nothing.
        """

    def step_update(self, num_updates: int) -> None:
        """Write the values for the next update after `num_updates` completed ones."""
        values = self.get_updated_values(num_updates)
        if values is None:
            return
        groups = self.optimizer.param_groups
        per_group = list(values) if isinstance(values, Sequence) else [values] * len(groups)
        for group, value in zip(groups, per_group, strict=True):
            group[self.param_group_field] = value


class StatefulSchedulerBase(SchedulerBase):
    """A `SchedulerBase` that counts its calls. `step` is called before each update, so the first call is update 0."""

    def __init__(self, optimizer: Optimizer, param_group_field: str = "lr") -> None:
        super().__init__(optimizer, param_group_field)
        self._num_updates = -1

    def step(self) -> None:
        """Write the values for the next update."""
        self._num_updates += 1
        self.step_update(self._num_updates)


class SteppedScheduler:
    """A scheduler with a `step` method, before its optimizer exists. `make_replay` runs it for an optimizer."""

    def __init__(self, make_replay: Callable[[Optimizer], Replay]) -> None:
        self._make_replay = make_replay
        self._replay: Replay | None = None

    @staticmethod
    def is_built_by(factory: object) -> bool:
        """Whether a `functools.partial` builds such a scheduler."""
        cls = getattr(factory, "func", None)
        return isinstance(cls, type) and issubclass(cls, LRScheduler | SchedulerBase)

    def replay(self, optimizer: Optimizer) -> Replay:
        """Return the values for an optimizer's groups, computed once: rebuilt optimizers have the same groups."""
        if self._replay is None:
            self._replay = self._make_replay(optimizer)
        return self._replay


class Replay:
    """The values that a scheduler with a `step` method writes into the param groups before each update."""

    def __init__(
        self, make_scheduler: Callable[[Optimizer], Any], optimizer: Optimizer, total_updates: int
    ) -> None:
        substitute = _SubstituteOptimizer(optimizer)
        initial = [_numbers(group) for group in substitute.param_groups]
        scheduler = make_scheduler(substitute)
        main_field = getattr(scheduler, "param_group_field", "lr")
        self._values = {(n, main_field): array("d") for n, group in enumerate(initial) if main_field in group}
        for update in range(total_updates):
            _advance(scheduler, substitute, update)
            for group_idx, group in enumerate(substitute.param_groups):
                for field, value in _numbers(group).items():
                    cell = (group_idx, field)
                    if cell in self._values:
                        self._values[cell].append(value)
                    elif value != initial[group_idx].get(field, value):  # the first change of another field
                        base = initial[group_idx][field]
                        self._values[cell] = array("d", [base] * update + [value])
        self.fields = [[field for n, field in self._values if n == idx] for idx in range(len(initial))]
        """The fields that the scheduler writes, for each group."""

    def value(self, update: int, group_idx: int, field: str) -> float:
        """Return the value of a field such as `lr` or `betas.0` in an update; after the last one it stays."""
        values = self._values[group_idx, field]
        return values[min(update, len(values) - 1)]


def _advance(scheduler: Any, optimizer: Optimizer, update: int) -> None:
    match scheduler:
        case StatefulSchedulerBase():
            scheduler.step()
        case SchedulerBase():
            scheduler.step_update(update)
        case _:
            if update > 0:  # torch's schedulers write the values of update 0 in their constructor
                optimizer.step()
                scheduler.step()


class _SubstituteOptimizer(Optimizer):
    """An optimizer whose groups have the fields of another optimizer's groups, and one unused parameter each."""

    def __init__(self, optimizer: Optimizer) -> None:
        groups = [
            {key: value for key, value in group.items() if key != "params"} | {"params": [torch.zeros(1)]}
            for group in optimizer.param_groups
        ]
        super().__init__(groups, dict(optimizer.defaults))

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Do nothing. torch's schedulers warn if it is not called."""


def _numbers(group: dict[str, Any]) -> dict[str, float]:
    """Return every number of a param group by name; items of a tuple are named `betas.0`."""
    numbers = dict[str, float]()
    for name, value in group.items():
        items = {f"{name}.{n}": v for n, v in enumerate(value)} if isinstance(value, tuple) else {name: value}
        numbers |= {
            key: float(item)
            for key, item in items.items()
            if isinstance(item, int | float | Tensor) and not isinstance(item, bool)
        }
    return numbers
