"""The states of the optimizers of all lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hydrant.training.stack.reasons import CannotStack
from hydrant.training.stack.weights import StackedWeights

_PLAIN = (int, float, bool, str, type(None))


_States = Sequence[Sequence[dict[str, Any]]]  # of each lane: those of the weights of a slot


@dataclass
class Slot:
    """One weight to the optimizer: a weight of the model, or all weights of a group in one row.

    Each entry of its state is one tensor for all lanes on the device of the weights, even numbers that the class keeps
    on the host.
    """

    values: Tensor  # (lanes, ...)
    state: dict[str, Tensor]  # (lanes, ...) each
    plain: dict[str, Any]  # state that is no tensor, the same in all lanes
    of_lanes: _States
    parameters: Sequence[Sequence[nn.Parameter]]  # of each lane

    def show(self) -> None:
        """Let the states of the lanes become views of that of the slot."""
        for key in self.state:
            self.show_entry(key)

    def show_entry(self, key: str) -> None:
        """Let one entry of the states of the lanes become views of that of the slot."""
        is_line = _is_line(key, self.of_lanes, self.parameters)
        for states, parameters, row in zip(
            self.of_lanes, self.parameters, self.state[key].unbind(), strict=True
        ):
            parts = row.split([p.numel() for p in parameters]) if is_line else [row] * len(parameters)
            for state, parameter, part in zip(states, parameters, parts, strict=True):
                state[key] = part.view(parameter.shape) if is_line else part


def stack_slots(optimizers: Sequence[Optimizer], weights: StackedWeights, *, is_flat: bool) -> list[Slot]:
    """Return the slots of a param group. The values of the states of the lanes remain as they are, and numbers, such as
    counts, are not those of the slots until `Slot.show`.

    Args:
        optimizers: of the lanes.
        weights: of the group.
        is_flat: whether all weights of the group are one slot.

    Raises:
        CannotStack: the states of the lanes differ in more than values.
    """
    rows = weights.rows.detach()
    if is_flat:
        return [_stack_slot(optimizers, rows, weights.parameters)]
    return [
        _stack_slot(optimizers, values, [[of_lane[n]] for of_lane in weights.parameters])
        for n, values in enumerate(weights.stacked(rows))
    ]


def _stack_slot(
    optimizers: Sequence[Optimizer], values: Tensor, of_lanes: Sequence[Sequence[nn.Parameter]]
) -> Slot:
    states = [[o.state.get(p, {}) for p in ps] for o, ps in zip(optimizers, of_lanes, strict=True)]
    slot = Slot(values, {}, {}, states, of_lanes)
    for key, value in dict(states[0][0]).items():
        if isinstance(value, Tensor):
            slot.state[key] = _stack_state(key, states, of_lanes).to(values.device)
            if value.ndim and value.device == values.device:
                slot.show_entry(key)  # at once, so that the memory holds one entry twice, not all of them
        elif type(value) not in _PLAIN or any(state[key] != value for of_lane in states for state in of_lane):
            raise CannotStack(f"the state {key} differs between the runs")
        else:
            slot.plain[key] = value
    return slot


def _stack_state(key: str, states: _States, of_lanes: Sequence[Sequence[nn.Parameter]]) -> Tensor:
    """Stack a state of all weights of a slot. A number is the same for all weights of a lane."""
    if _is_line(key, states, of_lanes):
        return torch.stack([torch.cat([state[key].reshape(-1) for state in of_lane]) for of_lane in states])
    return _stack([of_lane[0][key] for of_lane in states])


def _is_line(key: str, states: _States, of_lanes: Sequence[Sequence[nn.Parameter]]) -> bool:
    """Return whether a state has an entry for each one of the weights, which are in a line."""
    first = states[0][0][key]
    return len(of_lanes[0]) > 1 and first.ndim > 0 and first.shape == of_lanes[0][0].shape


def _stack(tensors: Sequence[Tensor]) -> Tensor:
    """Stack tensors so that each part has the strides of the first one: a product rounds by them."""
    dense = torch.empty_like(tensors[0])
    strides = (dense.numel(), *dense.stride())
    stacked = dense.new_empty_strided((len(tensors), *dense.shape), strides)
    # The counts of lanes that were in a stack are on the device, those of others where the class keeps them.
    return torch.stack([tensor.to(dense.device) for tensor in tensors], out=stacked)


def stack_group_state(groups: Sequence[dict[str, Any]], device: torch.device) -> dict[str, Tensor]:
    """Stack the tensors in a param group of all lanes, such as a count of steps, on a device."""
    return {
        key: torch.stack([torch.as_tensor(group[key], device=device) for group in groups])
        for key, value in groups[0].items()
        if isinstance(value, Tensor)
    }


def steps_agree(optimizers: Sequence[Optimizer]) -> bool:
    """Return whether the weights of each group have made the same number of steps in a lane."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            counts = {
                _scalar_state(optimizer.state.get(p, {})) for p in group["params"] if p in optimizer.state
            }
            if len(counts) > 1:
                return False
    return True


def separate_counts(optimizers: Sequence[Optimizer]) -> None:
    """Give each weight a count of steps of its own: those of an earlier stack share one in `Slot.show`."""
    for optimizer in optimizers:
        for state in optimizer.state.values():
            state |= {k: v.clone() for k, v in state.items() if isinstance(v, Tensor) and not v.ndim}


def _scalar_state(state: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the numbers in the state of a weight, such as its count of steps."""
    return tuple(
        (key, float(value) if isinstance(value, Tensor) else value)
        for key, value in state.items()
        if not isinstance(value, Tensor) or value.ndim == 0
    )
