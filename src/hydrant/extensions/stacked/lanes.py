"""The weights, buffers, fields and optimizer states of all lanes as tensors with a lane dimension."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from hydrant.data.base import to_device
from hydrant.optimizers.scheduled_fields import ScheduledField
from hydrant.training.trainer import Trainer


class CannotStack(Exception):
    """The runs cannot train as lanes of one stack. The message names the part and why."""


class StackedWeights:
    """The weights that one group of an optimizer trains: one row for each lane, which holds all of its weights.

    Args:
        parameters: of each lane, in the same order. They become views of the rows.
    """

    def __init__(self, parameters: Sequence[Sequence[nn.Parameter]]) -> None:
        self.parameters = [list(of_lane) for of_lane in parameters]
        self._shapes = [p.shape for p in self.parameters[0]]
        self._sizes = [p.numel() for p in self.parameters[0]]
        rows = [torch.cat([p.detach().reshape(-1) for p in of_lane]) for of_lane in self.parameters]
        self.rows = torch.stack(rows).requires_grad_()
        """(lanes, number of weights): the leaf tensor whose gradient backward computes."""
        for lane, of_lane in enumerate(self.parameters):
            for parameter, value in zip(of_lane, self.views(self.rows.detach()[lane]), strict=True):
                parameter.data = value

    def views(self, row: Tensor) -> list[Tensor]:
        """Return a row, (number of weights,), as tensors in the shapes of the weights."""
        return [part.view(shape) for part, shape in zip(row.split(self._sizes), self._shapes, strict=True)]

    def stacked(self, rows: Tensor) -> list[Tensor]:
        """Return all rows as tensors in the shapes of the weights, with the lanes in front."""
        parts = rows.split(self._sizes, dim=1)
        return [part.view(len(rows), *shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def show_gradients(self) -> None:
        """Let every parameter have its part of the gradient."""
        gradient = self.rows.grad
        for lane, of_lane in enumerate(self.parameters):
            values = [None] * len(of_lane) if gradient is None else self.views(gradient[lane])
            for parameter, value in zip(of_lane, values, strict=True):
                parameter.grad = value


def stack_in_place(tensors: Sequence[Tensor]) -> Tensor:
    """Stack a tensor of each lane, (lanes, ...); they become views of the result."""
    stacked = torch.stack([tensor.detach() for tensor in tensors])
    for tensor, value in zip(tensors, stacked.unbind(), strict=True):
        tensor.data = value
    return stacked


class StackedTensors:
    """The weights and buffers of the tasks of all lanes. Those of each lane become views of them.

    Args:
        lanes: runs of the same program.
        unused: the names of weights that no loss depends on.

    Raises:
        CannotStack: a param group has weights of several dtypes.
    """

    def __init__(self, lanes: Sequence[Trainer], unused: set[str]) -> None:
        self._of_first = named_tensors(lanes[0].task)
        self._names = {id(tensor): name for name, tensor in self._of_first.items()}
        self.weights = self._stack_weights(lanes, unused)
        """For each named optimizer, those of each param group; None for a group whose weights get no gradient."""
        self.rest = self._stack_rest(lanes)
        """Buffers and weights that do not train, by name: (lanes, ...) each."""

    def trained(self) -> Iterator[StackedWeights]:
        """Yield the weights of each param group that trains."""
        return (weights for groups in self.weights.values() for weights in groups if weights is not None)

    def named(self, rows: Iterable[Tensor]) -> dict[str, Tensor]:
        """Return rows of the weights that train, one tensor for each of `trained`, by the names of the weights."""
        named = dict[str, Tensor]()
        for weights, row in zip(self.trained(), rows, strict=True):
            names = (self._names[id(parameter)] for parameter in weights.parameters[0])
            named |= zip(names, weights.stacked(row), strict=True)
        return named

    def by_name(self) -> dict[str, Tensor]:
        """Return all tensors by name, (lanes, ...) each; those that train lead to the rows that backward sees."""
        return {**self.rest, **self.named(weights.rows for weights in self.trained())}

    def by_identity(self) -> Mapping[int, Tensor]:
        """Return all tensors by the `id` of that of the first lane."""
        return {id(self._of_first[name]): tensor.detach() for name, tensor in self.by_name().items()}

    def show_gradients(self) -> None:
        """Let every parameter of every lane have its part of the gradient."""
        for weights in self.trained():
            weights.show_gradients()

    def _stack_weights(
        self, lanes: Sequence[Trainer], unused: set[str]
    ) -> dict[str, list[StackedWeights | None]]:
        stacked = dict[str, list[StackedWeights | None]]()
        for name, entry in lanes[0].optimizers.entries.items():
            stacked[name] = []
            for position, group in enumerate(entry.optimizer.param_groups):
                places = [
                    n
                    for n, parameter in enumerate(group["params"])
                    if parameter.requires_grad and self._names[id(parameter)] not in unused
                ]
                groups = [lane.optimizers.entries[name].optimizer.param_groups[position] for lane in lanes]
                of_lanes = [[group["params"][n] for n in places] for group in groups]
                if len({parameter.dtype for parameter in of_lanes[0]}) > 1:
                    raise CannotStack("a param group has weights of several dtypes")
                stacked[name].append(StackedWeights(of_lanes) if places else None)
        return stacked

    def _stack_rest(self, lanes: Sequence[Trainer]) -> dict[str, Tensor]:
        trained = {id(parameter) for weights in self.trained() for parameter in weights.parameters[0]}
        tensors = [named_tensors(lane.task) for lane in lanes]
        names = [name for name, tensor in self._of_first.items() if id(tensor) not in trained]
        return {name: stack_in_place([of_lane[name] for of_lane in tensors]) for name in names}


def named_tensors(task: nn.Module) -> dict[str, Tensor]:
    """Return the weights and buffers of a task by name, each once."""
    return dict(task.named_parameters()) | dict(task.named_buffers())


def distinct(keys: Sequence[Hashable]) -> tuple[list[int], list[int]]:
    """Return the position of the first of each group of equal keys, and for each key the number of its group.

    >>> distinct(["a", "b", "a"])
    ([0, 1], [0, 1, 0])
    """
    first = dict[Hashable, int]()
    for position, key in enumerate(keys):
        first.setdefault(key, position)
    numbers = {key: number for number, key in enumerate(first)}
    return list(first.values()), [numbers[key] for key in keys]


class StackedField:
    """A scheduled field of all lanes. Each schedule that lanes share is computed once for all of them."""

    def __init__(self, fields: Sequence[ScheduledField]) -> None:
        first_lanes, places = distinct([id(field.ratio) for field in fields])
        self._ratios = [fields[n].ratio for n in first_lanes]
        self._lanes = [(field.base, place) for field, place in zip(fields, places, strict=True)]
        self._last: list[float] | None = None  # of `_ratios`
        self._values: list[float] = []

    def __call__(self, update: int) -> Sequence[float]:
        """Return the value of each lane in an update."""
        ratios = [ratio(update) for ratio in self._ratios]
        if ratios != self._last:
            self._last = ratios
            # A user's function may return a number of numpy.
            self._values = [float(base * ratios[place]) for base, place in self._lanes]
        return self._values


def flat_numbers(group: Mapping[str, Any], kinds: tuple[type, ...] = (float,)) -> dict[str, Any]:
    """Return the numbers of a param group, as `lr` or `betas.0`."""
    numbers = dict[str, Any]()
    for key, value in group.items():
        if type(value) in kinds:
            numbers[key] = value
        elif isinstance(value, (tuple, list)) and key != "params":
            numbers |= {f"{key}.{n}": item for n, item in enumerate(value) if type(item) in kinds}
    return numbers


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
        rows = self.state[key].unbind()
        for states, parameters, row in zip(self.of_lanes, self.parameters, rows, strict=True):
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
    """Stack a state of all weights of a slot. A number is the same for all weights of a lane.

    Each part has the strides of the first one: a product rounds by them.
    """
    if _is_line(key, states, of_lanes):
        return torch.stack([torch.cat([state[key].reshape(-1) for state in of_lane]) for of_lane in states])
    dense = torch.empty_like(states[0][0][key])
    stacked = dense.new_empty_strided((len(states), *dense.shape), (dense.numel(), *dense.stride()))
    # The counts of lanes that were in a stack are on the device, those of others where the class keeps them.
    return torch.stack([of_lane[0][key].to(dense.device) for of_lane in states], out=stacked)


def _is_line(key: str, states: _States, of_lanes: Sequence[Sequence[nn.Parameter]]) -> bool:
    """Return whether a state has an entry for each one of the weights, which are in a line."""
    first = states[0][0][key]
    return len(of_lanes[0]) > 1 and first.ndim > 0 and first.shape == of_lanes[0][0].shape


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
            states = [optimizer.state[p].values() for p in group["params"] if p in optimizer.state]
            counts = [[float(v) for v in of if isinstance(v, Tensor) and not v.ndim] for of in states]
            if any(of_weight != counts[0] for of_weight in counts):
                return False
    return True


def separate_counts(optimizers: Sequence[Optimizer]) -> None:
    """Give each weight a count of steps of its own: those of an earlier stack share one in `Slot.show`."""
    for optimizer in optimizers:
        for state in optimizer.state.values():
            state |= {k: v.clone() for k, v in state.items() if isinstance(v, Tensor) and not v.ndim}


_READS = (Tensor.item, Tensor.__float__, Tensor.__int__)
_COMPARISONS = {Tensor.__eq__: False, Tensor.__ne__: True, Tensor.eq: False, Tensor.ne: True}
_FRESH = (torch.empty, torch.zeros, torch.empty_like, torch.zeros_like)


class LaneNumbers:
    """Copies numbers of all lanes to their device. Does not wait for it, and copies equal numbers once.

    Args:
        device: of the lanes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._rows: list[list[float]] = []
        self._tensor = torch.empty(0, dtype=torch.float64, device=device)

    def __call__(self, rows: Sequence[Sequence[float]]) -> Tensor:
        """Return numbers, (rows, lanes) float64. They must not be written into."""
        if (wanted := [list(row) for row in rows]) != self._rows:
            self._rows = wanted
            self._tensor = to_device(torch.tensor(wanted, dtype=torch.float64), self._device)
        return self._tensor


class FunctionMode(TorchFunctionMode):
    """Inside this context, `call` is called instead of each function of torch."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        del types
        return self.call(func, args, dict(kwargs or {}))

    def call(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        """Return the result of `func(*args, **named)`, or what stands for it."""
        return func(*args, **named)


class TensorNumbers(FunctionMode):
    """Inside this context, torch's functions take tensors of shape () where they need Python numbers.

    A number that is read from a tensor, such as the count of steps, stays a tensor. A comparison with a constant always
    finds a difference, so the caller must exclude numbers that are 0 in some lanes only.

    Args:
        zero: a tensor of shape () with a lane dimension. It is added to every new buffer, so that the buffer gets a
            lane dimension too.

    Raises:
        CannotStack: other code branches on a tensor.
    """

    def __init__(self, zero: Tensor | None = None) -> None:
        super().__init__()
        self._zero = zero

    def call(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
        if func in _READS:
            return args[0] if args[0].is_floating_point() else args[0].double()
        if func in _COMPARISONS and args[0].ndim == 0 and isinstance(args[1], int | float):
            return _COMPARISONS[func]
        if func is Tensor.__bool__:
            raise CannotStack("it branches on a number")
        if func is F.cross_entropy and isinstance(named.get("label_smoothing"), Tensor):
            return _smoothed_cross_entropy(*args, **named)
        if (out := named.pop("out", None)) is not None:
            return out.copy_(func(*args, **named))
        if func in _FRESH and self._zero is not None:
            fresh = func(*args, **named).zero_()
            return fresh + self._zero.to(fresh.dtype)
        return _call(func, args, named)


def _call(func: Any, args: Sequence[Any], named: dict[str, Any]) -> Any:
    """Call a function of torch whose numbers may be tensors, in operations that torch maps over lanes as a whole.

    torch has no batching rules for some operations, and would make them lane by lane.
    """
    name = getattr(func, "__name__", "")
    if name == "_foreach_norm":
        return [torch.linalg.vector_norm(tensor, *args[1:]) for tensor in args[0]]
    match name.rstrip("_"):
        case "add" | "sub" if isinstance(factor := named.get("alpha"), Tensor):
            return func(args[0], args[1] * factor.to(args[1].dtype))
        case "addcmul":
            result = args[0] + args[1] * args[2] * _number(named.get("value", 1), args[0])
        case "addcdiv":
            result = args[0] + args[1] / args[2] * _number(named.get("value", 1), args[0])
        case "lerp":
            result = args[0] + (args[1] - args[0]) * _number(named.get("weight", args[-1]), args[0])
        case "clamp" | "clamp_min" | "clamp_max" if name.endswith("_"):
            result = getattr(torch, name[:-1])(*args, **named)
        case _:
            return func(*args, **named)
    return args[0].copy_(result) if name.endswith("_") else result


def _number(value: Any, like: Tensor) -> Any:
    return value.to(like.dtype) if isinstance(value, Tensor) else value


def _smoothed_cross_entropy(*args: Any, label_smoothing: Tensor, **named: Any) -> Tensor:
    """Return the cross entropy, which is linear in the label smoothing."""
    plain, uniform = (F.cross_entropy(*args, **named, label_smoothing=end) for end in (0.0, 1.0))
    return plain + (uniform - plain) * label_smoothing.to(plain.dtype)
