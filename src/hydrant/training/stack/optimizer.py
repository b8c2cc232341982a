"""The step of one optimizer in all lanes, as one program."""

from __future__ import annotations

import contextlib
import warnings
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim import ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from hydrant.errors import typed_line
from hydrant.optimizers.fused import FusedCall, argument_of, fused_call, has_fused_call
from hydrant.optimizers.scheduled_fields import set_field
from hydrant.training.compile.eager_step import unwrap_step
from hydrant.training.stack.fields import flat_numbers
from hydrant.training.stack.numbers import DecidesByNumber, LaneNumbers, TensorNumbers
from hydrant.training.stack.reasons import CannotStack
from hydrant.training.stack.states import stack_group_state, stack_slots, steps_agree
from hydrant.training.stack.weights import StackedWeights

ELEMENTWISE = frozenset((ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop))
"""Optimizers that treat every weight alike, so that they may take all weights of a group as one."""

_KERNELS = {"foreach": False, "fused": False}
"""Fields of a group that choose a kernel: those of the plain one can be mapped."""

_TORCH_KERNELS = {**_KERNELS, "capturable": True}
"""For torch's own optimizers, those that branch on no value. timm checks that `capturable` is used on a GPU only."""

_UNMAPPED = (
    DecidesByNumber, RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError,
    UserWarning,
)  # fmt: skip
"""Errors of a step that cannot be traced for all lanes, and torch's warning that it would make a part lane by lane."""

_NO_BATCHING_RULE = "There is a performance drop"

Numbers = Sequence[Mapping[str, Sequence[float]]]
"""For each group, the scheduled fields (`lr`, `betas.0`) with the value of each lane."""


class StackedOptimizer:
    """Applies the updates of one named optimizer of all lanes.

    Args:
        optimizers: of the lanes, which have applied an update. Their states become views of stacked states.
        weights: for each param group, with gradients; None for a group whose weights get none.
        numbers: of an update.

    Raises:
        CannotStack: the step cannot be made for all lanes together. The states remain as they are.
    """

    def __init__(
        self, optimizers: Sequence[Optimizer], weights: Sequence[StackedWeights | None], numbers: Numbers
    ) -> None:
        first = optimizers[0]
        if _holds_optimizers(first):
            raise CannotStack("it is made of several optimizers")
        if not any(weights):
            raise CannotStack("its weights get no gradients")
        self._optimizers, self._weights = list(optimizers), list(weights)
        self._device = next(w.rows.device for w in weights if w is not None)
        step: Any = type(first).step
        self._step = unwrap_step(step) or step
        self._is_flat = type(first) in ELEMENTWISE and steps_agree(optimizers)
        self._slots = [
            [] if w is None else stack_slots(optimizers, w, is_flat=self._is_flat) for w in self._weights
        ]
        groups = list(zip(*(optimizer.param_groups for optimizer in optimizers), strict=True))
        self._group_state = [stack_group_state(of_lanes, self._device) for of_lanes in groups]
        self._differing, self._copy_numbers = list(map(_differing, groups)), LaneNumbers(self._device)
        is_fused = self._is_flat and has_fused_call(first) and self._device.type == "cpu"
        self._rows = self._make_rows() if is_fused else []
        self._counts = [slot.state["step"] for group in self._slots for slot in group if "step" in slot.state]
        self._program = None if is_fused else self._traced(numbers)
        for slot in (slot for slots in self._slots for slot in slots):
            slot.show()
        for of_lanes, state in zip(groups, self._group_state, strict=True):
            for key, values in state.items():
                for group, value in zip(of_lanes, values.unbind(), strict=True):
                    group[key] = value

    def step(self, numbers: Numbers) -> None:
        """Apply the gradients of the stacked weights."""
        if self._program is None:
            self._step_rows(numbers)
        else:
            self._program(*self._arguments(numbers))

    def tensors(self) -> list[Tensor]:
        """Return everything that a step changes, with the lanes in front."""
        slots = [slot for group in self._slots for slot in group]
        states = [value for slot in slots for value in slot.state.values()]
        return [
            *(slot.values for slot in slots),
            *states,
            *(v for g in self._group_state for v in g.values()),
        ]

    # ---- the state of all lanes

    def _gradients(self) -> list[list[Tensor]]:
        """Return the gradient of every slot, by group."""
        gradients: list[list[Tensor]] = []
        for weights in self._weights:
            if weights is None:
                gradients.append([])
                continue
            rows = weights.rows.grad
            assert rows is not None
            gradients.append([rows] if self._is_flat else weights.stacked(rows))
        return gradients

    # ---- row by row

    def _make_rows(self) -> list[list[FusedCall]]:
        """Return the call of the fused kernel for each group of weights, and for each lane in it."""
        rows = list[list[FusedCall]]()
        for position, slots in enumerate(self._slots):
            for slot in slots:
                states = [
                    {key: value[n] for key, value in slot.state.items()} for n in range(len(slot.values))
                ]
                groups = [optimizer.param_groups[position] for optimizer in self._optimizers]
                values = zip(groups, slot.values.unbind(), states, strict=True)
                rows.append(
                    [fused_call(self._optimizers[0], group, [row], [state]) for group, row, state in values]
                )
        return rows

    def _step_rows(self, numbers: Numbers) -> None:
        gradients = [gradient for group in self._gradients() for gradient in group]
        scheduled = [numbers[n] for n, slots in enumerate(self._slots) if slots]
        for count in self._counts:
            count.add_(1)
        for calls, gradient, fields in zip(self._rows, gradients, scheduled, strict=True):
            arguments = [argument_of(field) for field in fields]
            for call, row, *values in zip(calls, gradient.unbind(), *fields.values(), strict=True):
                call([row], **dict(zip(arguments, values, strict=True)))

    # ---- one program for all lanes

    def _arguments(self, numbers: Numbers) -> tuple[Any, ...]:
        values = [[slot.values for slot in slots] for slots in self._slots]
        states = [[slot.state for slot in slots] for slots in self._slots]
        return values, self._gradients(), states, self._group_state, self._as_tensors(numbers)

    def _as_tensors(self, numbers: Numbers) -> list[dict[str, Tensor]]:
        """Return the numbers that differ between lanes or updates, (lanes,) float64 each, by group."""
        varying = [{**own, **scheduled} for own, scheduled in zip(self._differing, numbers, strict=True)]
        rows = iter(self._copy_numbers([values for fields in varying for values in fields.values()]))
        return [{name: next(rows) for name in fields} for fields in varying]

    def _traced(self, numbers: Numbers) -> Callable[..., Any]:
        """Return the step as a list of torch's operations on the tensors of all lanes."""
        try:
            return self._trace(numbers)
        except _UNMAPPED as error:
            why = str(error) if isinstance(error, DecidesByNumber) else typed_line(error)
            why = why.partition(". Please file")[0]
            raise CannotStack(why) from error

    def _trace(self, numbers: Numbers) -> Callable[..., Any]:
        first = self._optimizers[0]
        kernels = _TORCH_KERNELS if type(first).__module__.startswith("torch.optim.") else _KERNELS

        def step_of_lane(values: Any, gradients: Any, states: Any, group_state: Any, numbers: Any) -> Tensor:
            groups, state = list[dict[str, Any]](), dict[Any, Any]()
            counts, given = list[tuple[Tensor, Tensor]](), dict[Any, dict[str, Any]]()
            for position, group in enumerate(first.param_groups):
                for slot, value, gradient, kept in zip(
                    self._slots[position],
                    values[position],
                    gradients[position],
                    states[position],
                    strict=True,
                ):
                    value.grad = gradient
                    exact = {k: v.double() for k, v in kept.items() if v.ndim == 0 and v.is_floating_point()}
                    counts += [(kept[key], count) for key, count in exact.items()]
                    given[value] = {**slot.plain, **kept, **exact}
                    state[value] = dict(given[value])
                chosen = {key: value for key, value in kernels.items() if key in group}
                mapped = {**group, **group_state[position], **chosen, "params": values[position]}
                for name, value in numbers[position].items():
                    set_field(mapped, name, value)
                groups.append(mapped)
            before = [flat_numbers(group, kinds=(float, int, bool)) for group in groups]
            zero = next(v for group in gradients for v in group).sum() * 0
            with TensorNumbers(zero):
                self._step(_shadow(first, groups, state))
            after = [flat_numbers(group, kinds=(float, int, bool)) for group in groups]
            if before != after or any(not _is_same(state[value], kept) for value, kept in given.items()):
                raise DecidesByNumber("it counts in Python, or makes new tensors for its state")
            for count, exact in counts:
                count.copy_(exact)
            return zero

        @torch.no_grad()
        def step(*arguments: Any) -> Any:
            return torch.vmap(step_of_lane, randomness="error")(*arguments)

        with _as_if_compiling(), warnings.catch_warnings():
            warnings.filterwarnings("error", _NO_BATCHING_RULE)
            program = make_fx(step, tracing_mode="fake")(*self._arguments(numbers))  # without memory
        program.graph.eliminate_dead_code()
        program.recompile()
        return torch.no_grad()(program)


def _differing(groups: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the numbers that differ between the groups of the lanes, as `lr` or `betas.0`."""
    numbers = [flat_numbers(group) for group in groups]
    by_name = {name: [of_lane[name] for of_lane in numbers] for name in numbers[0]}
    return {name: values for name, values in by_name.items() if len(set(values)) > 1}


def _shadow(optimizer: Optimizer, groups: list[dict[str, Any]], state: dict[Any, Any]) -> Optimizer:
    """Return a copy of an optimizer with other groups and states."""
    shadow = object.__new__(type(optimizer))  # copy.copy leaves out what a class adds
    vars(shadow).update(vars(optimizer))
    shadow.param_groups, shadow.state = groups, defaultdict(dict, state)
    return shadow


def _is_same(state: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Return whether a step has kept the state of a weight: the same tensors, and the same numbers."""
    if state.keys() != given.keys():
        return False
    pairs = [(state[key], value) for key, value in given.items()]
    return all(new is old if isinstance(old, Tensor) else new == old for new, old in pairs)


def _holds_optimizers(optimizer: Optimizer) -> bool:
    """Return whether an optimizer is made of others, which have the groups and states of their own."""
    values = [
        v for value in vars(optimizer).values() for v in (value if isinstance(value, list) else [value])
    ]
    return any(isinstance(value, Optimizer) for value in values)


@contextlib.contextmanager
def _as_if_compiling() -> Generator[None]:
    """Let torch's optimizers keep numbers in tensors, as they do while torch.compile traces them."""
    module: Any = torch.compiler
    before = module._is_compiling_flag
    module._is_compiling_flag = True
    try:
        yield
    finally:
        module._is_compiling_flag = before
