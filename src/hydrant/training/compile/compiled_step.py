"""The step of an optimizer, compiled so that scheduled hyperparameters cause no recompilation.

Each group has its own 0-dim float64 tensor for the learning rate, which is written in place. With it every optimizer of
torch computes the same, bit for bit, as with a Python number. Its weight decay is a tensor too, so that all jobs of a
sweep share the compiled code. On CUDA these tensors, and the numbers in the optimizer's state, are on the device, so
that a CUDA graph can hold the whole step.
"""

from __future__ import annotations

import inspect
import itertools
import types
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from hydrant.errors import ConfigError, log, typed_line
from hydrant.optimizers.scheduled_fields import get_field, set_field
from hydrant.training.compile.eager_step import EagerStep, OptimizerStep
from hydrant.training.compile.supported import BETAS, TENSOR_FIELDS, optimizer_name, why_eager
from hydrant.training.compile.weight_decay import CompiledWeightDecay

Hyperparameters = Literal["tensors", "numbers"]

NUM_WARMUP_CALLS = 3
"""Calls that may compile. A step that compiles later would do so again and again, and becomes eager."""

_HOST_NUMBERS = frozenset(("step", "mu_product"))
"""The state that an eager optimizer of torch reads as a number. On the device, each update would wait for it."""


def compile_step(
    optimizer: Optimizer,
    scheduled: Collection[str],
    arguments: Mapping[str, Any],
    hyperparameters: Hyperparameters = "tensors",
) -> OptimizerStep:
    """Return the compiled step of an optimizer, or log why it stays eager and return the eager one.

    Args:
        optimizer: with `tensors`, fields of its groups become tensors unless the step stays eager.
        scheduled: the fields of its groups that change from update to update, such as `lr` or `betas.0`.
        arguments: the arguments of torch.compile.
        hyperparameters: whether scheduled fields are `tensors` or `numbers` in the compiled code.
    """
    as_tensors = hyperparameters == "tensors"
    obstacle = why_eager(optimizer, scheduled, as_tensors=as_tensors)
    if obstacle is not None:
        log.warning("the step of %s stays eager: %s", type(optimizer).__name__, obstacle)
        return EagerStep(optimizer)
    log.info("the step of %s is compiled", type(optimizer).__name__)
    return CompiledStep(optimizer, scheduled, arguments, as_tensors=as_tensors)


class CompiledStep:
    """Runs the step of an optimizer as one compiled graph.

    The first step of a run is eager and takes numbers, because it creates the optimizer's state. With tensors, if a
    step is recompiled after `NUM_WARMUP_CALLS` calls (because some gradients come and go, for example), the rest of the
    run is eager and a warning is logged.
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
        self._name = type(optimizer).__name__
        self._eager = EagerStep(optimizer)
        self._as_tensors = as_tensors
        self._tensor_fields = _tensor_fields(optimizer, scheduled) if as_tensors else []
        groups = optimizer.param_groups if as_tensors else []
        self._decay = CompiledWeightDecay(optimizer, groups, is_scheduled="weight_decay" in scheduled)
        self._compiled = torch.compile(_unwrapped_step(optimizer, self._decay), **arguments)
        self._num_calls = 0
        self._is_compiled = True
        self._is_first = True  # no step was taken or loaded yet
        self._host_numbers = set(_HOST_NUMBERS)  # names in states and groups
        self._is_state_placed = False

    @property
    def is_warming_up(self) -> bool:
        return self._as_tensors and self._num_calls <= NUM_WARMUP_CALLS

    def __call__(self) -> None:
        if not self._is_compiled:
            self._eager()
            return
        is_first, self._is_first = self._is_first, False
        if is_first or (not self._optimizer.state and _has_state(self._optimizer)):
            self._eager()
        else:
            self._use_tensors()
            self._place_state()
            self._call_compiled()

    def disable(self) -> None:
        self._is_compiled = False
        self._use_numbers()

    def state_dict(self) -> dict[str, Any]:
        return {"is_compiled": self._is_compiled}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._is_first = self._is_state_placed = False
        if state["is_compiled"]:
            self._is_compiled = True
        else:
            self.disable()

    def _call_compiled(self) -> None:
        from torch._dynamo.exc import TorchDynamoException
        from torch._dynamo.utils import counters

        self._num_calls += 1
        num_graphs = counters["stats"]["unique_graphs"]
        try:
            with torch.no_grad(), self._decay.replace_optimizer_decay():
                self._compiled()
        except TorchDynamoException as error:
            message = f"the step of {self._name} cannot be compiled ({typed_line(error)})"
            raise ConfigError("compile.optimizer", message, remedy="use compile.optimizer=false") from error
        has_compiled = counters["stats"]["unique_graphs"] > num_graphs
        if has_compiled and self._as_tensors and not self.is_warming_up:
            self.disable()
            message = "the step of %s was recompiled in its call %d and is eager from now on"
            log.warning(message, self._name, self._num_calls)

    def _use_tensors(self) -> None:
        """Give each group its own tensors: groups may share an inherited value, and a loaded state has others."""
        seen: set[int] = set()
        for group, field in self._group_fields():
            value, device = get_field(group, field), _device(group)
            if not _is_float64_on(device, value) or id(value) in seen:
                value = torch.tensor(float(value), dtype=torch.float64, device=device)
                set_field(group, field, value)
            seen.add(id(value))

    def _place_state(self) -> None:
        """Move the numbers that an eager step keeps on the host, and declare that the state keeps its addresses.

        A CUDA graph takes no tensors on the host, and changes only tensors whose address is known.
        """
        if self._is_state_placed:
            return
        from torch._dynamo import mark_static_address

        for group, states in self._states():
            device = _device(group)
            for owner in (group, *states):
                moved = {k: v for k, v in owner.items() if _is_number(v) and v.device != device}
                self._host_numbers |= moved.keys()
                owner |= {name: value.to(device) for name, value in moved.items()}
                for value in owner.values():
                    if isinstance(value, Tensor) and value.device.type == "cuda":
                        mark_static_address(value, guard=False)
        self._is_state_placed = True

    def _use_numbers(self) -> None:
        """Undo what the compiled step needed: tensors as fields, and numbers of the state on the device."""
        for group, field in self._group_fields():
            set_field(group, field, float(get_field(group, field)))
        for group, states in self._states():
            on_device = group.get("capturable", False)
            for owner in (group, *states):
                numbers = {k: v for k, v in owner.items() if k in self._host_numbers and _is_number(v)}
                owner |= {} if on_device else {name: value.cpu() for name, value in numbers.items()}
        self._is_state_placed = False

    def _states(self) -> Generator[tuple[dict[str, Any], list[dict[str, Any]]]]:
        """Yield every group with the states of its parameters."""
        for group in self._optimizer.param_groups:
            yield group, [state for p in group["params"] if (state := self._optimizer.state.get(p))]

    def _group_fields(self) -> Generator[tuple[dict[str, Any], str]]:
        for group in self._optimizer.param_groups:
            for field in self._tensor_fields:
                if field.partition(".")[0] in group:
                    yield group, field


def _tensor_fields(optimizer: Optimizer, scheduled: Collection[str]) -> list[str]:
    """Return the fields that become tensors: the scheduled ones, and those that a sweep usually varies."""
    supported = set(TENSOR_FIELDS.get(optimizer_name(optimizer), ()))
    fields = {"lr"} | supported & {"weight_decay", *scheduled}
    if supported >= set(BETAS) and not fields.isdisjoint(BETAS):
        fields |= set(BETAS)  # these optimizers need both betas as tensors, or none
    return sorted(fields)


def _unwrapped_step(optimizer: Optimizer, decay: CompiledWeightDecay) -> Callable[[], None]:
    """Return the step without torch's wrappers, which would break the graph.

    Each optimizer gets its own code object, because Dynamo limits the number of graphs per code object.
    """
    step: Any = inspect.unwrap(type(optimizer).step)

    def call() -> None:
        decay.apply()
        step(optimizer)

    code = call.__code__.replace(co_name=f"step_{type(optimizer).__name__}_{next(_numbers)}")
    return types.FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)


_numbers = itertools.count()


def _has_state(optimizer: Optimizer) -> bool:
    """Return whether the optimizer keeps state. Plain SGD does not."""
    return any(group.get("momentum", 1) != 0 for group in optimizer.param_groups)


def _is_float64_on(device: torch.device, value: Any) -> bool:
    return isinstance(value, Tensor) and value.device == device and value.dtype == torch.float64


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim == 0


def _device(group: Mapping[str, Any]) -> torch.device:
    return group["params"][0].device
