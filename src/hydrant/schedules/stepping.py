"""Schedulers that are stepped, made functions of the update: torch's own classes, and the bases for a user's.

A stepped scheduler is run on a stand-in for the optimizer, with groups of the same fields and no parameters of its
own, and what it writes there is kept. So its values can be asked for in any order, previewed, and resumed by running
it again.
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
    """Schedules one field of an optimizer's groups, by the number of completed updates.

    The interface of pytorch-accelerated's scheduler of that name: `get_updated_values` is what a subclass gives.

    Raises:
        KeyError: a group has no such field.
    """

    def __init__(self, optimizer: Optimizer, param_group_field: str = "lr") -> None:
        self.optimizer = optimizer
        self.param_group_field = param_group_field
        initial = f"initial_{param_group_field}"
        for group_idx, group in enumerate(optimizer.param_groups):
            if param_group_field not in group:
                raise KeyError(
                    f"param_groups[{group_idx}] of {type(optimizer).__name__} has no {param_group_field}"
                )
            group.setdefault(initial, group[param_group_field])
        self.base_lr_values = [group[initial] for group in optimizer.param_groups]

    @abstractmethod
    def get_updated_values(self, num_updates: int) -> float | Sequence[float] | None:
        """The field's value for the update after `num_updates`: of all groups, of each, or None to leave it."""

    def step_update(self, num_updates: int) -> None:
        """Write the values for the update after `num_updates` completed ones."""
        values = self.get_updated_values(num_updates)
        if values is None:
            return
        groups = self.optimizer.param_groups
        each = list(values) if isinstance(values, Sequence) else [values] * len(groups)
        for group, value in zip(groups, each, strict=True):
            group[self.param_group_field] = value


class StatefulSchedulerBase(SchedulerBase):
    """One that counts by itself. `step` comes before every update: the first gives the values of update 0."""

    def __init__(self, optimizer: Optimizer, param_group_field: str = "lr") -> None:
        super().__init__(optimizer, param_group_field)
        self._num_updates = -1

    def step(self) -> None:
        """Write the values for the next update."""
        self._num_updates += 1
        self.step_update(self._num_updates)


class Stepped:
    """A scheduler that waits for its optimizer; `make` replays it for one."""

    def __init__(self, make: Callable[[Optimizer], Replay]) -> None:
        self._make = make
        self._replay: Replay | None = None

    @staticmethod
    def is_made_by(factory: object) -> bool:
        """Whether a partial makes such a scheduler."""
        made = getattr(factory, "func", None)
        return isinstance(made, type) and issubclass(made, LRScheduler | SchedulerBase)

    def replay(self, optimizer: Optimizer) -> Replay:
        """Its values for the groups of an optimizer: those of the first, for the same groups are made again."""
        if self._replay is None:
            self._replay = self._make(optimizer)
        return self._replay


class Replay:
    """What a stepped scheduler writes into the groups before each update."""

    def __init__(self, make: Callable[[Optimizer], Any], optimizer: Optimizer, total_updates: int) -> None:
        stand_in = _StandIn(optimizer)
        initial = [_numbers(group) for group in stand_in.param_groups]
        scheduler = make(stand_in)
        main = getattr(scheduler, "param_group_field", "lr")
        self._values = {
            (n, field): array("d") for n, group in enumerate(initial) for field in group if field == main
        }
        for update in range(total_updates):
            _advance(scheduler, stand_in, update)
            for group_idx, group in enumerate(stand_in.param_groups):
                for field, value in _numbers(group).items():
                    cell = (group_idx, field)
                    if cell in self._values:
                        self._values[cell].append(value)
                    elif value != initial[group_idx].get(field, value):  # it writes this one too
                        before = initial[group_idx][field]
                        self._values[cell] = array("d", [before] * update + [value])
        self.fields = [
            [field for n, field in self._values if n == group_idx] for group_idx in range(len(initial))
        ]
        """The fields that it writes, group by group."""

    def value(self, update: int, group_idx: int, field: str) -> float:
        """The value of a field, as `lr` or `betas.0`, in an update; past the last one, the last."""
        values = self._values[group_idx, field]
        return values[min(update, len(values) - 1)]


def _advance(scheduler: Any, optimizer: Optimizer, update: int) -> None:
    match scheduler:
        case StatefulSchedulerBase():
            scheduler.step()
        case SchedulerBase():
            scheduler.step_update(update)
        case _ if update > 0:  # torch's write the first values when they are made
            optimizer.step()
            scheduler.step()
        case _:
            pass


class _StandIn(Optimizer):
    """Groups with the fields of another optimizer's, and nothing to optimise."""

    def __init__(self, optimizer: Optimizer) -> None:
        groups = [
            {key: value for key, value in group.items() if key != "params"} | {"params": [torch.zeros(1)]}
            for group in optimizer.param_groups
        ]
        super().__init__(groups, dict(optimizer.defaults))

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Does nothing; torch's schedulers want it to be called."""


def _numbers(group: dict[str, Any]) -> dict[str, float]:
    """Every number in a group by its name, one of a tuple as `betas.0`."""
    found = dict[str, float]()
    for name, value in group.items():
        items = {f"{name}.{n}": v for n, v in enumerate(value)} if isinstance(value, tuple) else {name: value}
        found |= {
            key: float(item)
            for key, item in items.items()
            if isinstance(item, int | float | Tensor) and not isinstance(item, bool)
        }
    return found
