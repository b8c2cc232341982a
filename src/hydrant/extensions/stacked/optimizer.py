"""Clipping, the steps of the optimizers and the averages of weights, of all lanes at once."""

import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim import ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop

from hydrant.batch import widened
from hydrant.errors import log, typed_line
from hydrant.extensions.stacked import lanes as stack_lanes
from hydrant.optimizers.ema import ModelAverage
from hydrant.optimizers.kernels import has_fused_call, norm_ratio, step_fused, unwrap_step
from hydrant.optimizers.scheduled_fields import metric_prefix, set_field
from hydrant.training.trainer import Trainer

ELEMENTWISE = frozenset((ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop))
"""Optimizers that treat every weight alike, so that they may take all weights of a group as one."""

_KERNELS = {"foreach": False, "fused": False}
"""Fields of a group that choose a kernel: those of the plain one can be mapped."""

_UNMAPPED = RuntimeError, TypeError, ValueError, LookupError, AttributeError, AssertionError, UserWarning
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
        self,
        optimizers: Sequence[Optimizer],
        weights: Sequence[stack_lanes.StackedWeights | None],
        numbers: Numbers,
    ) -> None:
        first = optimizers[0]
        parts = [part for v in vars(first).values() for part in (v if isinstance(v, list) else [v])]
        if any(isinstance(part, Optimizer) for part in parts):  # they have the groups and states of their own
            raise stack_lanes.CannotStack("it is made of several optimizers")
        if not any(weights):
            raise stack_lanes.CannotStack("its weights get no gradients")
        self._optimizers, self._weights = list(optimizers), list(weights)
        self._device = next(w.rows.device for w in weights if w is not None)
        step: Any = type(first).step
        self._step = unwrap_step(step) or step
        self._is_flat = type(first) in ELEMENTWISE and stack_lanes.steps_agree(optimizers)
        self._slots = [
            [] if w is None else stack_lanes.stack_slots(optimizers, w, is_flat=self._is_flat)
            for w in self._weights
        ]
        groups = list(zip(*(optimizer.param_groups for optimizer in optimizers), strict=True))
        self._group_state = [stack_lanes.stack_group_state(of_lanes, self._device) for of_lanes in groups]
        self._differing = list(map(_differing, groups))
        self._copy_numbers = stack_lanes.LaneNumbers(self._device)
        is_fused = self._is_flat and has_fused_call(first) and self._device.type == "cpu"
        self._rows = self._of_rows() if is_fused else []
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

    # ---- the state of all lanes

    def _gradients(self) -> list[list[Tensor]]:
        """Return the gradient of every slot, by group."""
        gradients: list[list[Tensor]] = []
        for weights in self._weights:
            rows = None if weights is None else weights.rows.grad
            if weights is None or rows is None:
                gradients.append([])
            else:
                gradients.append([rows] if self._is_flat else weights.stacked(rows))
        return gradients

    # ---- row by row

    def _of_rows(self) -> list[Optimizer]:
        """Return an optimizer of each lane whose weights are the rows of the slots, for its fused kernel."""
        optimizers = list[Optimizer]()
        for n, optimizer in enumerate(self._optimizers):
            groups, state = list[dict[str, Any]](), dict[Any, Any]()
            for group, slots in zip(optimizer.param_groups, self._slots, strict=True):
                groups.append({**group, "params": [slot.values[n] for slot in slots]})
                for row, slot in zip(groups[-1]["params"], slots, strict=True):
                    state[row] = {key: value[n] for key, value in slot.state.items()}
            optimizers.append(_shadow(optimizer, groups, state))
        return optimizers

    def _step_rows(self, numbers: Numbers) -> None:
        gradients = self._gradients()
        for n, optimizer in enumerate(self._rows):
            for group, of_group, fields in zip(optimizer.param_groups, gradients, numbers, strict=True):
                for row, gradient in zip(group["params"], of_group, strict=True):
                    row.grad = gradient[n]
                for field, values in fields.items():
                    set_field(group, field, values[n])
            is_done = step_fused(optimizer)
            assert is_done

    # ---- one program for all lanes

    def _arguments(self, numbers: Numbers) -> tuple[Any, ...]:
        values = [[slot.values for slot in slots] for slots in self._slots]
        states = [[slot.state for slot in slots] for slots in self._slots]
        return values, self._gradients(), states, self._group_state, self._as_tensors(numbers)

    def _as_tensors(self, numbers: Numbers) -> list[dict[str, Tensor]]:
        """Return the numbers that differ between lanes or updates, (lanes,) float64 each, by group."""
        varying = [{**fixed, **scheduled} for fixed, scheduled in zip(self._differing, numbers, strict=True)]
        rows = iter(self._copy_numbers([values for fields in varying for values in fields.values()]))
        return [{name: next(rows) for name in fields} for fields in varying]

    def _traced(self, numbers: Numbers) -> Callable[..., Any]:
        """Return the step as a list of torch's operations on the tensors of all lanes."""
        try:
            return self._trace(numbers)
        except _UNMAPPED as error:
            raise stack_lanes.CannotStack(typed_line(error).partition(". Please file")[0]) from error

    def _trace(self, numbers: Numbers) -> Callable[..., Any]:
        first = self._optimizers[0]

        def step_of_lane(values: Any, gradients: Any, states: Any, group_state: Any, numbers: Any) -> Tensor:
            groups, state = list[dict[str, Any]](), dict[Any, Any]()
            counts, kept_states = list[tuple[Tensor, Tensor]](), dict[Any, dict[str, Any]]()
            for position, group in enumerate(first.param_groups):
                parts = self._slots[position], values[position], gradients[position], states[position]
                for slot, value, gradient, kept in zip(*parts, strict=True):
                    value.grad = gradient
                    exact = {k: v.double() for k, v in kept.items() if v.ndim == 0 and v.is_floating_point()}
                    counts += [(kept[key], count) for key, count in exact.items()]
                    kept_states[value] = {**slot.plain, **kept, **exact}
                    state[value] = dict(kept_states[value])
                chosen = {key: value for key, value in _KERNELS.items() if key in group}
                mapped = {**group, **group_state[position], **chosen, "params": values[position]}
                for name, value in numbers[position].items():
                    set_field(mapped, name, value)
                groups.append(mapped)
            before = [stack_lanes.flat_numbers(group, kinds=(float, int, bool)) for group in groups]
            zero = next(v for group in gradients for v in group).sum() * 0
            with stack_lanes.TensorNumbers(zero):
                self._step(_shadow(first, groups, state))
            after = [stack_lanes.flat_numbers(group, kinds=(float, int, bool)) for group in groups]
            if before != after or any(not _is_same(state[key], kept) for key, kept in kept_states.items()):
                raise stack_lanes.CannotStack("it counts in Python, or makes new tensors for its state")
            for count, exact in counts:
                count.copy_(exact)
            return zero

        @torch.no_grad()
        def step(*arguments: Any) -> Any:
            return torch.vmap(step_of_lane, randomness="error")(*arguments)

        with warnings.catch_warnings():
            warnings.filterwarnings("error", _NO_BATCHING_RULE)
            program = make_fx(step, tracing_mode="fake")(*self._arguments(numbers))  # without memory
        program.graph.eliminate_dead_code()
        program.recompile()
        return torch.no_grad()(program)


def _differing(groups: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the numbers that differ between the groups of the lanes, as `lr` or `betas.0`."""
    numbers = [stack_lanes.flat_numbers(group) for group in groups]
    by_name = {name: [of_lane[name] for of_lane in numbers] for name in numbers[0]}
    return {name: values for name, values in by_name.items() if len(set(values)) > 1}


def _shadow(optimizer: Optimizer, groups: list[dict[str, Any]], state: dict[Any, Any]) -> Optimizer:
    """Return a copy of an optimizer with other groups and states."""
    shadow = object.__new__(type(optimizer))  # copy.copy leaves out what a class adds
    vars(shadow).update(vars(optimizer))
    shadow.param_groups, shadow.state = groups, defaultdict(dict, state)
    return shadow


def _is_same(state: Mapping[str, Any], kept: Mapping[str, Any]) -> bool:
    """Return whether a step has kept the state of a weight: the same tensors, and the same numbers."""
    if state.keys() != kept.keys():
        return False
    pairs = [(state[key], value) for key, value in kept.items()]
    return all(new is old if isinstance(old, Tensor) else new == old for new, old in pairs)


class StackedSteps:
    """Clips the gradients of all lanes and applies them, with the thresholds and the schedules of each lane.

    Args:
        lanes: the runs of a stack.
        tensors: of the lanes.
    """

    def __init__(self, lanes: Sequence[Trainer], tensors: stack_lanes.StackedTensors) -> None:
        self._lanes, self._first, self._tensors = lanes, lanes[0], tensors
        self._optimizers: dict[str, StackedOptimizer | None] = {}
        # Of each lane: the clipping by the name of the optimizer, and the value of an update by the field.
        self._clippings = {
            name: [lane.optimizers.entries[name].clipping for lane in lanes] for name in tensors.weights
        }
        self._max_norms, self._max_values = self._limits("max_norm"), self._limits("max_value")
        self._fields = {
            key: stack_lanes.StackedField([lane.optimizers.schedules.fields[key] for lane in lanes])
            for key in self._first.optimizers.schedules.fields
        }
        # Lanes step alone until they have applied an update, which makes the states of their optimizers.
        self._has_states = all(lane.state.num_updates > lane.state.num_skipped for lane in lanes)

    def _limits(self, field: str) -> dict[str, Tensor | None]:
        """Return one kind of clipping limit by optimizer, (lanes,), in torch's default dtype; None: no limit."""
        device = self._first.plan.world.device
        values = {name: [getattr(clipping, field) for clipping in of] for name, of in self._clippings.items()}
        return {name: None if v[0] is None else torch.tensor(v, device=device) for name, v in values.items()}

    @torch.no_grad()
    def clip(self, *, measure: bool) -> dict[str, Tensor]:
        """Clip the gradients; return their norms before clipping, (lanes,), as `Optimizers` does for one run."""
        norms = dict[str, Tensor]()
        for name, groups in self._tensors.weights.items():
            clippings = self._clippings[name]
            rows = [w.rows.grad for w in groups if w is not None and w.rows.grad is not None]
            if rows and (measure or clippings[0].max_norm is not None):
                each = torch.stack([torch.linalg.vector_norm(row, dim=1) for row in rows])
                norms[f"{metric_prefix(name)}grad_norm"] = norm = torch.linalg.vector_norm(each, dim=0)
                if (limits := self._max_norms[name]) is not None:
                    ratios = norm_ratio(norm, limits)
                    for row in rows:
                        row.mul_(ratios[:, None])
            if (limits := self._max_values[name]) is not None:
                for row in rows:
                    most = limits.to(row.dtype)[:, None]
                    row.copy_(row.clamp(-most, most))
            if clippings[0].agc is not None:
                self._tensors.show_gradients()
                for lane, clipping in zip(self._lanes, clippings, strict=True):
                    clipping(lane.optimizers.entries[name].parameters, None)
        return norms

    def apply(self, num_updates: int) -> None:
        """Apply the gradients of the update after `num_updates` completed ones."""
        for name in self._tensors.weights:
            numbers = self._scheduled(name, num_updates)
            optimizer = self._optimizer(name, numbers)
            if optimizer is None:
                self._step_alone(name, num_updates)
            else:
                optimizer.step(numbers)
        self._has_states = True

    def _optimizer(self, name: str, numbers: Numbers) -> StackedOptimizer | None:
        """Return an optimizer of all lanes; None if the lanes make their steps alone, in the first update too."""
        if name not in self._optimizers and self._has_states:
            optimizers = [lane.optimizers.entries[name].optimizer for lane in self._lanes]
            try:
                self._optimizers[name] = StackedOptimizer(optimizers, self._tensors.weights[name], numbers)
            except stack_lanes.CannotStack as reason:
                log.info("the steps of %s are made lane by lane: %s", type(optimizers[0]).__name__, reason)
                self._optimizers[name] = None
                stack_lanes.separate_counts(optimizers)
        return self._optimizers.get(name)

    def _step_alone(self, name: str, num_updates: int) -> None:
        """Let every lane make the step of its own optimizer."""
        self._tensors.show_gradients()
        for lane in self._lanes:
            lane.optimizers.schedules.write(num_updates)
            lane.optimizers.entries[name].step()

    def _scheduled(self, name: str, num_updates: int) -> list[dict[str, Sequence[float]]]:
        """Return the values of the scheduled fields of each group of an optimizer, for every lane."""
        numbers: list[dict[str, Sequence[float]]] = [{} for _ in self._tensors.weights[name]]
        for (optimizer, position, field), values in self._fields.items():
            if optimizer == name:
                numbers[position][field] = values(num_updates)
        return numbers


class StackedAverages:
    """Moves the averages of all lanes, which become views of stacked tensors; without averaging it does nothing.

    Args:
        lanes: the runs of a stack.
        stacked: the weights and buffers of all lanes, by the `id` of the tensor of the first lane.
    """

    def __init__(self, lanes: Sequence[Trainer], stacked: Mapping[int, Tensor]) -> None:
        averages = [a for lane in lanes if isinstance(a := lane.plan.averaging, ModelAverage)]
        self._averaged: list[tuple[Tensor, Tensor]] = []
        self._copied: list[tuple[Tensor, Tensor]] = []
        self._distinct: list[ModelAverage] = []
        self._places: list[int] = []
        if not averages:
            return
        self._weights = stack_lanes.LaneNumbers(lanes[0].plan.world.device)
        # Lanes whose averages are configured alike, of which the first one gives the weight.
        settings = [repr(lane.plan.config["averaging"]) for lane in lanes]
        first_lanes, self._places = stack_lanes.distinct(settings)
        self._distinct = [averages[n] for n in first_lanes]
        first, states = averages[0], [average.states() for average in averages]
        model = states[0][1]
        for names, pairs in ((first.averaged, self._averaged), (first.copied, self._copied)):
            for name in names:
                average = stack_lanes.stack_in_place([state[name] for state, _ in states])
                pairs.append((average, stacked[id(model[name])]))

    @torch.no_grad()
    def update(self, num_updates: int) -> None:
        """Add the weights after `num_updates` completed updates to the averages."""
        by_settings = [average.weight(num_updates) for average in self._distinct]
        weights = [by_settings[place] for place in self._places]
        if not any(weights):
            return
        (row,) = self._weights([weights])
        rows = {dtype: row.to(dtype) for dtype in {average.dtype for average, _ in self._averaged}}
        is_partial = not all(weights)  # a lane that does not move may hold NaN
        for average, value in self._averaged:
            by_lane = _by_lane(rows[average.dtype], average)
            moved = average.lerp(widened(value), by_lane)
            average.copy_(moved.where(by_lane != 0, average) if is_partial else moved)
        for average, value in self._copied:
            average.copy_(value.where(_by_lane(row, average) != 0, average) if is_partial else value)


def _by_lane(row: Tensor, like: Tensor) -> Tensor:
    """Return numbers of the lanes, (lanes,), with as many dimensions as a stacked tensor."""
    return row.view(-1, *[1] * (like.ndim - 1))
