"""The update of an optimizer, compiled so that nothing a schedule changes compiles it again.

The learning rate of each group is a 0-dim float64 tensor of its own, written in place: with it every optimizer of
torch computes what it does with a number, bit for bit. So is its weight decay, so that the code serves a whole sweep.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import types
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from hydrant.compilation.decay import GraphDecay
from hydrant.compilation.known import BETAS, TENSORS, name_of, why_eager
from hydrant.compilation.step import EagerUpdate, Step
from hydrant.errors import ConfigError, typed_line

log = logging.getLogger("hydrant")

Hyperparameters = Literal["tensors", "numbers"]

WARM_UP = 3
"""Updates of a process that may compile; what does so later would do it again and again."""


def compiled_update(
    optimizer: Optimizer,
    scheduled: Collection[str],
    arguments: Mapping[str, Any],
    hyperparameters: Hyperparameters = "tensors",
) -> Step:
    """What applies an optimizer's update: compiled by torch.compile with these arguments, or, told once, its own step.

    `scheduled` are the fields of its groups that change from update to update.
    """
    as_tensors = hyperparameters == "tensors"
    obstacle = why_eager(optimizer, scheduled, as_tensors=as_tensors)
    if obstacle is not None:
        log.warning("the update of %s stays eager: %s", type(optimizer).__name__, obstacle)
        return EagerUpdate(optimizer)
    log.info("the update of %s is compiled", type(optimizer).__name__)
    return CompiledUpdate(optimizer, scheduled, arguments, as_tensors=as_tensors)


class CompiledUpdate:
    """Calls the compiled step of an optimizer, as one graph.

    The first update of a run makes the optimizer's state and stays eager. With tensors, if one compiles again after
    `WARM_UP` calls, because gradients come and go, say, the rest of the run is eager, and it is told.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        scheduled: Collection[str],
        arguments: Mapping[str, Any],
        *,
        as_tensors: bool,
    ) -> None:
        self._optimizer = optimizer
        self._eager = EagerUpdate(optimizer)
        self._as_tensors = as_tensors
        self._tensors = _tensors_of(optimizer, scheduled) if as_tensors else []
        decayed = optimizer.param_groups if as_tensors else []
        self._decay = GraphDecay(optimizer, decayed, is_scheduled="weight_decay" in scheduled)
        self._compiled = torch.compile(_step_of(optimizer, self._decay), **arguments)
        self._num_calls = 0
        self._is_compiled = True
        self._use_tensors()

    @property
    def is_warming_up(self) -> bool:
        return self._as_tensors and self._num_calls <= WARM_UP

    def __call__(self, num_updates: int) -> None:
        if not self._is_compiled:
            self._eager(num_updates)
            return
        self._use_tensors()
        if num_updates == 0 or (not self._optimizer.state and _keeps_state(self._optimizer)):
            self._eager(num_updates)
        else:
            self._call_compiled()

    def state_dict(self) -> dict[str, Any]:
        return {"is_compiled": self._is_compiled}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._is_compiled = state["is_compiled"]
        if not self._is_compiled:
            self._use_numbers()

    def _call_compiled(self) -> None:
        from torch._dynamo.exc import TorchDynamoException
        from torch._dynamo.utils import counters

        self._num_calls += 1
        before = counters["stats"]["unique_graphs"]
        try:
            with torch.no_grad(), self._decay.instead_of_its_own():
                self._compiled()
        except TorchDynamoException as error:
            name = type(self._optimizer).__name__
            told = (
                f"the update of {name} cannot be compiled ({typed_line(error)}); use compile.optimizer=false"
            )
            raise ConfigError("compile.optimizer", told) from error
        has_compiled = counters["stats"]["unique_graphs"] > before
        if has_compiled and self._as_tensors and not self.is_warming_up:
            self._is_compiled = False
            self._use_numbers()
            log.warning(
                "the update of %s was compiled again in its call %d, and goes on eager",
                type(self._optimizer).__name__,
                self._num_calls,
            )

    def _use_tensors(self) -> None:
        """Groups that inherit a value share it, and a loaded state may hold others: each gets its own, on the host."""
        seen: set[int] = set()
        for group in self._optimizer.param_groups:
            for field in self._tensors:
                if field.partition(".")[0] not in group:
                    continue
                value = _get(group, field)
                if not _is_own(value) or id(value) in seen:
                    value = torch.tensor(float(value), dtype=torch.float64)
                    _set(group, field, value)
                seen.add(id(value))

    def _use_numbers(self) -> None:
        for group in self._optimizer.param_groups:
            for field in self._tensors:
                if field.partition(".")[0] in group:
                    _set(group, field, float(_get(group, field)))


def _tensors_of(optimizer: Optimizer, scheduled: Collection[str]) -> list[str]:
    """The fields that are tensors: what is scheduled, and what a sweep varies."""
    taken = set(TENSORS.get(name_of(optimizer), ()))
    wanted = {"lr"} | taken & {"weight_decay", *scheduled}
    if taken >= set(BETAS) and wanted & set(BETAS):  # such take both or none
        wanted |= set(BETAS)
    return sorted(wanted)


def _step_of(optimizer: Optimizer, decay: GraphDecay) -> Callable[[], None]:
    """The step without torch's wrappers, which break the graph, in code of its own, for which alone Dynamo caches."""
    step: Any = inspect.unwrap(type(optimizer).step)

    def update() -> None:
        decay.apply()
        step(optimizer)

    code = update.__code__.replace(co_name=f"update_{type(optimizer).__name__}_{next(_numbers)}")
    return types.FunctionType(code, update.__globals__, code.co_name, None, update.__closure__)


_numbers = itertools.count()


def _keeps_state(optimizer: Optimizer) -> bool:
    """Plain SGD keeps none."""
    return any(group.get("momentum", 1) != 0 for group in optimizer.param_groups)


def _is_own(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "cpu" and value.dtype == torch.float64


def _get(group: Mapping[str, Any], field: str) -> Any:
    name, _, position = field.partition(".")
    return group[name][int(position)] if position else group[name]


def _set(group: dict[str, Any], field: str, value: Any) -> None:
    name, _, position = field.partition(".")
    if not position:
        group[name] = value
        return
    items = list(group[name])
    items[int(position)] = value
    group[name] = tuple(items)
