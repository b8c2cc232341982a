"""Turn schedulers with a `step` method into functions of the update: those of torch and other packages, and of users.

`Stepped` runs such a scheduler for the whole run on a substitute optimizer, whose param groups have the same fields but
no real parameters, and keeps all values that it writes. Therefore values can be read in any order and previewed, and
a resumed run computes them again instead of loading a state. A scheduler that reads weights, gradients or the
optimizer's state is refused, because these are not known before training.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from hydrant.clock import Clock, converted
from hydrant.config.instantiate import as_config_error
from hydrant.errors import ConfigError
from hydrant.optimizers.scheduled_fields import as_number, numbers_of
from hydrant.schedules import GroupSchedule


class SchedulerBase(ABC):
    """Base class of schedulers that set one field of an optimizer's param groups from the number of completed updates.

    Subclasses implement `get_updated_values`. The interface is that of pytorch-accelerated's `SchedulerBase`.

    Raises:
        KeyError: A group lacks the field.
        ValueError: A subclass gives too few or too many values.
    """

    def __init__(self, optimizer: Optimizer, param_group_field: str = "lr") -> None:
        self.optimizer = optimizer
        self.param_group_field = param_group_field
        initial = f"initial_{param_group_field}"
        for group in optimizer.param_groups:
            group.setdefault(initial, group[param_group_field])
        self.base_lr_values = [group[initial] for group in optimizer.param_groups]

    @abstractmethod
    def get_updated_values(self, num_updates: int) -> float | Iterable[float] | None:
        """Return the field's value for the next update after `num_updates` completed ones.

        One number sets all groups; a sequence, an array or a generator has one for each group; None changes nothing.
        Numbers of numpy and torch are numbers too.
        """

    def step_update(self, num_updates: int) -> None:
        """Write the values for the next update after `num_updates` completed ones."""
        values = self.get_updated_values(num_updates)
        if values is None:
            return
        groups = self.optimizer.param_groups
        # Numbers of numpy and torch can have an __iter__ too, but 0 dimensions.
        is_one = not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0
        per_group: Any = [values] * len(groups) if is_one else values
        for group, value in zip(groups, per_group, strict=True):
            number = as_number(value)
            group[self.param_group_field] = value if number is None else number


class StatefulSchedulerBase(SchedulerBase):
    """A `SchedulerBase` that counts its calls. `step` is called before each update, so the first call is update 0."""

    def __init__(self, optimizer: Optimizer, param_group_field: str = "lr") -> None:
        super().__init__(optimizer, param_group_field)
        self._num_updates = -1

    def step(self) -> None:
        """Write the values for the next update."""
        self._num_updates += 1
        self.step_update(self._num_updates)


class Stepped(GroupSchedule):
    """The values that a scheduler with a `step` method writes into the param groups before each update.

    Args:
        clock: of the run.
        fn: returns the scheduler of an optimizer. Durations in the arguments of a partial are counted in steps;
            `num_updates` and `num_updates_per_epoch` stand for numbers of updates.
        every: the duration between two steps.

    Raises:
        ConfigError: a duration cannot be converted.
    """

    def __init__(self, clock: Clock, *, fn: Callable[..., Any], every: object) -> None:
        self._every, self._total_updates = clock.interval(every, "every"), clock.total_updates
        make, arguments = (fn.func, fn.keywords) if isinstance(fn, partial) else (fn, dict[str, Any]())
        placeholders = clock.placeholders

        def convert(text: str) -> int:
            return placeholders[text] if text in placeholders else self._every.count(clock.updates(text, ""))

        self._node = {"_target_": f"{make.__module__}.{make.__qualname__}", **arguments}
        self._make = partial(make, **converted(arguments, convert))
        self._fields: list[dict[str, Callable[[int], float]]] | None = None

    def fields(self, optimizer: Optimizer) -> list[dict[str, Callable[[int], float]]]:
        """Return the functions `update -> value`, computed once: rebuilt optimizers have the same groups.

        Raises:
            ConfigError: the scheduler needs metrics, weights, gradients or the optimizer's state, sets a field to
                something that is not a number, or is no scheduler.
        """
        if self._fields is None:
            with as_config_error("fn", self._node):
                self._fields = self._replay(_SubstituteOptimizer(optimizer))
        return self._fields

    def _replay(self, substitute: Optimizer) -> list[dict[str, Callable[[int], float]]]:
        initial = [numbers_of(group) for group in substitute.param_groups]
        scheduler = _make(self._make, substitute)
        field = getattr(scheduler, "param_group_field", "lr")
        values = [{field: array("d")} if field in group else {} for group in initial]
        step = 0
        for update in range(self._total_updates):
            if update == 0 or self._every.due(update):
                _advance(scheduler, substitute, step)
                step += 1
            for group, bases, of_group in zip(substitute.param_groups, initial, values, strict=True):
                _record(update, group, bases, of_group)
        return [
            {name: lambda update, row=row: row[min(update, len(row) - 1)] for name, row in of_group.items()}
            for of_group in values
        ]


def _record(
    update: int, group: Mapping[str, Any], initial: Mapping[str, float], values: dict[str, array[float]]
) -> None:
    """Add the numbers of a group in an update to the values of its fields."""
    numbers = numbers_of(group)
    for field, row in values.items():
        if field not in numbers:
            value = group.get(field.partition(".")[0])
            message = f"sets {field} to {value!r} for update {update}, but a number is needed"
            raise ConfigError("fn._target_", message)
        row.append(numbers[field])
    for field, base in initial.items():
        if field not in values and numbers.get(field) not in (base, None):
            # The first change of another field: before it, the field had its configured value.
            values[field] = array("d", [base] * update + [numbers[field]])


def _make(make_scheduler: Callable[..., Any], optimizer: Optimizer) -> Any:
    """Return the scheduler of an optimizer, if it can be replayed."""
    # By name, because it is not the first argument of transformers.get_scheduler.
    by_name = "optimizer" in inspect.signature(make_scheduler).parameters
    scheduler = make_scheduler(optimizer=optimizer) if by_name else make_scheduler(optimizer)
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ConfigError("fn._target_", "waits for a metric", remedy="use the option plateau instead")
    if not isinstance(scheduler, LRScheduler) and not hasattr(scheduler, "get_updated_values"):
        kind = type(scheduler).__name__
        message = f"returns a {kind}, but a scheduler of torch or a SchedulerBase is needed"
        raise ConfigError("fn._target_", message)
    return scheduler


def _advance(scheduler: Any, optimizer: Optimizer, step: int) -> None:
    """Write the values that follow `step` steps. torch's schedulers write the first ones in their constructor."""
    if isinstance(scheduler, LRScheduler):
        if step > 0:
            optimizer.step()
            scheduler.step()
    elif hasattr(scheduler, "step"):  # a StatefulSchedulerBase of Hydrant or of pytorch-accelerated
        scheduler.step()
    else:
        scheduler.step_update(step)


class _SubstituteOptimizer(Optimizer):
    """An optimizer whose groups have the fields of another optimizer's groups, and parameters that cannot be read."""

    def __init__(self, optimizer: Optimizer) -> None:
        groups = [
            {key: value for key, value in group.items() if key != "params"} | {"params": [torch.zeros(1)]}
            for group in optimizer.param_groups
        ]
        super().__init__(groups, dict(optimizer.defaults))
        for group, original in zip(self.param_groups, optimizer.param_groups, strict=True):
            group["params"] = [torch.zeros(1).as_subclass(_Unreadable) for _ in original["params"]]

    @property
    def state(self) -> Any:
        raise _reads("the optimizer's state")

    @state.setter
    def state(self, value: object) -> None:
        """Keep nothing: `Optimizer.__init__` sets it."""

    def step(self, closure: Any = None) -> Any:
        """Do nothing. torch's schedulers warn if it is not called."""


class _Unreadable(Tensor):
    """Stands for a parameter. Whatever is read from it or computed with it is refused."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _reads("weights or gradients")


def _reads(source: str) -> ConfigError:
    message = f"reads {source}, but schedules are computed before training"
    return ConfigError("fn._target_", message, remedy="make it a function of the update, or use plateau")
