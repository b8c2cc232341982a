"""Turn schedulers with a `step` method into functions of the update: those of torch and other packages, and of users.

`Replay` runs such a scheduler for the whole run on a substitute optimizer, whose param groups have the same fields but
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

from hydrant.clock import Clock, Interval, converted
from hydrant.errors import ConfigError


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
            number = _number(value)
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


class SteppedScheduler:
    """A scheduler with a `step` method, before its optimizer exists. `make_replay` runs it for an optimizer."""

    def __init__(self, make_replay: Callable[[Optimizer], Replay]) -> None:
        self._make_replay = make_replay
        self._replay: Replay | None = None

    @staticmethod
    def is_built_by(factory: object) -> bool:
        """Whether a `functools.partial` builds such a scheduler: it takes an optimizer."""
        if not isinstance(factory, partial):
            return False
        func: Any = factory.func
        is_torch_class = isinstance(func, type) and issubclass(func, LRScheduler)
        return is_torch_class or hasattr(func, "get_updated_values") or _names_optimizer(func)

    def replay(self, optimizer: Optimizer) -> Replay:
        """Return the values for an optimizer's groups, computed once: rebuilt optimizers have the same groups."""
        if self._replay is None:
            self._replay = self._make_replay(optimizer)
        return self._replay


_EVERY_UPDATE = Interval(1)


class Replay:
    """The values that a scheduler with a `step` method writes into the param groups before each update.

    Args:
        make_scheduler: returns the scheduler of an optimizer.
        optimizer: its param groups are copied.
        total_updates: number of updates of the run.
        every: the interval between two steps.

    Raises:
        ConfigError: The scheduler needs metrics, weights, gradients or the optimizer's state, sets a field to something
            that is not a number, or is no scheduler. The key is relative to the scheduler's.
    """

    def __init__(
        self,
        make_scheduler: Callable[..., Any],
        optimizer: Optimizer,
        total_updates: int,
        every: Interval = _EVERY_UPDATE,
    ) -> None:
        substitute = _SubstituteOptimizer(optimizer)
        self._initial = [numbers_of(group) for group in substitute.param_groups]
        scheduler = _make(make_scheduler, substitute)
        field = getattr(scheduler, "param_group_field", "lr")
        self._values = {(n, field): array("d") for n, group in enumerate(self._initial) if field in group}
        step = 0
        for update in range(total_updates):
            if update == 0 or every.due(update):
                _advance(scheduler, substitute, step)
                step += 1
            self._record(update, substitute.param_groups)
        self.fields = [[field for n, field in self._values if n == idx] for idx in range(len(self._initial))]
        """The fields that the scheduler writes, for each group."""

    @staticmethod
    def of_config(factory: partial[Any], clock: Clock) -> Callable[[Optimizer], Replay]:
        """Return the function that runs the scheduler of a config for an optimizer.

        The argument `every` is the duration between two steps. Durations in the other arguments are counted in steps;
        `num_updates` and `num_updates_per_epoch` stand for numbers of updates.

        Raises:
            ConfigError: A duration cannot be converted.
        """
        arguments = dict(factory.keywords)
        every = clock.interval(arguments.pop("every", 1), "every")

        placeholders = clock.placeholders

        def convert(text: str) -> int:
            return placeholders[text] if text in placeholders else every.count(clock.updates(text, ""))

        make = partial(factory.func, *factory.args, **converted(arguments, convert))
        return partial(Replay, make, total_updates=clock.total_updates, every=every)

    def _record(self, update: int, groups: list[dict[str, Any]]) -> None:
        numbers = [numbers_of(group) for group in groups]
        for (group_idx, field), values in self._values.items():
            if field not in numbers[group_idx]:
                value = groups[group_idx].get(field.partition(".")[0])
                message = f"sets {field} to {value!r} for update {update}, but a number is needed"
                raise ConfigError("_target_", message)
            values.append(numbers[group_idx][field])
        for group_idx, initial in enumerate(self._initial):
            for field, base in initial.items():
                value, cell = numbers[group_idx].get(field), (group_idx, field)
                if cell not in self._values and value not in (base, None):
                    # The first change of another field: before it, the field had its configured value.
                    self._values[cell] = array("d", [base] * update + [value])

    def value(self, update: int, group_idx: int, field: str) -> float:
        """Return the value of a field such as `lr` or `betas.0` in an update; after the last one it stays."""
        values = self._values[group_idx, field]
        return values[min(update, len(values) - 1)]


def _names_optimizer(make: Callable[..., Any]) -> bool:
    return "optimizer" in inspect.signature(make).parameters


def _make(make_scheduler: Callable[..., Any], optimizer: Optimizer) -> Any:
    """Return the scheduler of an optimizer, if it can be replayed."""
    # By name, because it is not the first argument of transformers.get_scheduler.
    by_name = _names_optimizer(make_scheduler)
    scheduler = make_scheduler(optimizer=optimizer) if by_name else make_scheduler(optimizer)
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ConfigError("_target_", "waits for a metric", remedy="use the option plateau instead")
    if not isinstance(scheduler, LRScheduler) and not hasattr(scheduler, "get_updated_values"):
        kind = type(scheduler).__name__
        message = f"returns a {kind}, but a scheduler of torch or a SchedulerBase is needed"
        raise ConfigError("_target_", message)
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
    def state(self, value: object) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Keep nothing: `Optimizer.__init__` sets it."""

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Do nothing. torch's schedulers warn if it is not called."""


class _Unreadable(Tensor):
    """Stands for a parameter. Whatever is read from it or computed with it is refused."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise _reads("weights or gradients")


def _reads(source: str) -> ConfigError:
    message = f"reads {source}, but schedules are computed before training"
    return ConfigError("_target_", message, remedy="make it a function of the update, or use plateau")


def _number(value: Any) -> float | None:
    """Return a number of Python, numpy or torch as a float; None for anything else."""
    if getattr(value, "ndim", None) == 0:
        value = value.item()
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def numbers_of(group: Mapping[str, Any]) -> dict[str, float]:
    """Return every number of a param group by name; items of a tuple or list are named `betas.0`."""
    numbers = dict[str, float]()
    for name, value in group.items():
        is_series = isinstance(value, tuple | list) and name != "params"
        items = {f"{name}.{n}": item for n, item in enumerate(value)} if is_series else {name: value}
        numbers |= {key: number for key, item in items.items() if (number := _number(item)) is not None}
    return numbers
