"""`Stack`: the next update of several runs at once."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from hydrant import seeding
from hydrant.batch import Batch, Outcome
from hydrant.errors import CompileMismatch, NonFiniteError
from hydrant.optimizers.scheduled_fields import metric_prefix
from hydrant.training.compile import Compilation, Eager
from hydrant.training.loop import skip_update
from hydrant.training.memory import is_out_of_memory
from hydrant.training.stack.averages import StackedAverages
from hydrant.training.stack.compilation import LaneCompilation
from hydrant.training.stack.forward import StackedTask, differing_numbers, explain_failure
from hydrant.training.stack.meter import StackedMeter
from hydrant.training.stack.numbers import DecidesByNumber
from hydrant.training.stack.optimizer import StackedOptimizer
from hydrant.training.stack.reasons import CannotStack
from hydrant.training.stack.record import draws_of_lanes
from hydrant.training.stack.stream import StackedStream
from hydrant.training.stack.weights import StackedWeights, stack_in_place
from hydrant.training.trainer import Trainer
from hydrant.training.update import Update
from hydrant.training.verify_compile import Gradients, difference

_COPIES_OF_WEIGHTS = 6
"""The weights, their gradients, two states of the optimizer, an average and what a step allocates."""

T = TypeVar("T")

LaneUpdate = Update | NonFiniteError
"""What an update did in a lane, or the error that ends its run."""


class Stack:
    """Makes the updates of several runs, its lanes, at once.

    The weights, buffers, averages and optimizer states of the lanes become views of stacked tensors. Everything else
    of a lane, such as its evaluation and its checkpoints, works as if it were alone. A lane reads the samples and draws
    the random numbers that it would alone.

    Args:
        lanes: runs of the same program, which have completed the same number of updates.

    Raises:
        CannotStack: they cannot train together.
    """

    def __init__(self, lanes: Sequence[Trainer]) -> None:
        self.lanes = list(lanes)
        self._first, self._plan = lanes[0], lanes[0].plan
        self._device = self._plan.world.device
        self._draws, unused = draws_of_lanes(lanes)
        numbers = differing_numbers([lane.task for lane in lanes])
        self._numbers = [torch.tensor(n.values, dtype=torch.float64, device=self._device) for n in numbers]
        self._task = StackedTask(self._first.task, numbers)
        compilation = self._plan.compilation
        self._compilation: Compilation = Eager(self._plan.world)
        if isinstance(compilation, LaneCompilation) and compilation.of_stack.is_on:
            self._compilation = compilation.of_stack
            self._compilation.apply(self._task, retains_graph=False)
        self._weights = self._stack_weights(unused)
        self._names = self._names_of_trained()
        self._rest = self._stack_rest()
        self._averages = StackedAverages(lanes, self._by_identity())
        self._optimizers: dict[str, StackedOptimizer | None] = {}
        self._stream, self._meter = StackedStream(lanes), StackedMeter(lanes)
        self.num_updates = self._first.state.num_updates
        """Completed updates."""
        self._failed: set[int] = set()  # lanes whose error was returned
        # Lanes that have applied an update, which makes the states of their optimizers.
        states = [lane.state for lane in lanes]
        self._applied = {n for n, state in enumerate(states) if state.num_updates > state.num_skipped}
        if self._compilation.is_on:
            self._check_compiled()

    def update(self, *, measure: bool, show_gradients: bool = False) -> list[LaneUpdate]:
        """Make the next update of every lane and count it.

        Args:
            measure: return the gradient norms too.
            show_gradients: give the parameters of every lane their gradients.
        """
        num_updates = self.num_updates
        may_skip = self._first.optimizers.skips_non_finite
        buffers = [buffer.clone() for buffer in self._rest.values()] if may_skip else []
        outcomes = self._accumulate(num_updates)
        norms = self._clip(measure=measure)
        skipped = self._not_finite(outcomes, norms) if may_skip else []
        if show_gradients:
            self._show_gradients()
        self._step(num_updates, skipped, dict(zip(self._rest, buffers, strict=False)))
        self.num_updates += 1
        self._averages.update(self.num_updates, skipped)
        for outcome in outcomes:
            self._meter.add(outcome.scalars(), self._counted(outcome.num_targets, skipped))
        updates = [self._finish(lane, n in skipped, norms, n) for n, lane in enumerate(self.lanes)]
        self._compilation.check_recompiles(self.num_updates)
        return updates

    @property
    def is_compiled(self) -> bool:
        """Whether another number of lanes would be compiled again."""
        return self._compilation.is_on

    def bytes_per_lane(self) -> int:
        """Return how much memory a lane needs: weights, gradients, states and what the forward pass keeps."""
        kept = list[int]()

        def count(tensor: Tensor) -> Tensor:
            kept.append(tensor.nbytes)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            self._try_forward(lambda outcome: None)
        weights = sum(weights.rows.nbytes for weights in self._trained())
        rest = sum(tensor.nbytes for tensor in self._rest.values())
        return (_COPIES_OF_WEIGHTS * weights + rest + sum(kept)) // len(self.lanes)

    def sync(self) -> None:
        """Give the lanes their metrics and the values of their schedules, before they log or save."""
        self._meter.flush()
        for lane in self.lanes:
            lane.optimizers.schedules.write(max(lane.state.num_updates - 1, 0))

    def _try_forward(self, use: Callable[[Outcome], T]) -> T:
        """Return what a function makes of the outcome of the next micro-batch; the buffers keep their values."""
        num_updates = self.num_updates
        before = {name: tensor.clone() for name, tensor in self._rest.items()}
        batch = next(iter(self._stream.micro_batches(num_updates)))
        with self._plan.precision.autocast():
            outcome = self._call(self._plan.precision.cast(batch), self._draw(num_updates, 0))
        result = use(outcome)
        for name, value in before.items():
            self._rest[name].copy_(value)
        return result

    def _check_compiled(self) -> None:
        """Compile the task; compare its losses and gradients with those of the eager one, if the config says so.

        Raises:
            CompileError: it cannot be compiled, or computes something else.
        """
        with warnings.catch_warnings():
            # Dynamo reads `.grad` of every input of a graph, also of the views of the rows.
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
            compiled = self._gradients()
        self._compilation.check_recompiles(self.num_updates)
        if not self._compilation.checks:
            return
        with self._compilation.force_eager():
            eager = self._gradients()
        if message := difference(eager, compiled, self._plan.precision.tolerance, "compiled and eager"):
            raise CompileMismatch(message)

    def _gradients(self) -> Gradients:
        """Return the sum of the losses of all lanes for the next micro-batch, and its gradients."""

        def gradients(outcome: Outcome) -> Gradients:
            loss, trained = outcome.total_loss().sum(), list(self._trained())
            rows = torch.autograd.grad(loss, [weights.rows for weights in trained])
            named = dict[str, Tensor]()
            for names, weights, row in zip(self._names, trained, rows, strict=True):
                named |= zip(names, weights.stacked(row), strict=True)
            return Gradients(loss.detach(), named)

        return self._try_forward(gradients)

    # ---- what is stacked

    def _stack_weights(self, unused: set[str]) -> dict[str, list[StackedWeights | None]]:
        """Stack the weights of each param group of each optimizer that get gradients."""
        names = {id(parameter): name for name, parameter in self._first.task.named_parameters()}
        stacked = dict[str, list[StackedWeights | None]]()
        for name, entry in self._first.optimizers.entries.items():
            stacked[name] = []
            for position, group in enumerate(entry.optimizer.param_groups):
                places = [
                    n for n, p in enumerate(group["params"]) if p.requires_grad and names[id(p)] not in unused
                ]
                groups = [
                    lane.optimizers.entries[name].optimizer.param_groups[position] for lane in self.lanes
                ]
                of_lanes = [[group["params"][n] for n in places] for group in groups]
                if len({parameter.dtype for parameter in of_lanes[0]}) > 1:
                    raise CannotStack("a param group has weights of several dtypes")
                stacked[name].append(StackedWeights(of_lanes) if places else None)
        return stacked

    def _stack_rest(self) -> dict[str, Tensor]:
        """Stack the buffers, and the weights that do not train; return them by name."""
        trained = {id(parameter) for weights in self._trained() for parameter in weights.parameters[0]}
        tasks = [lane.task for lane in self.lanes]
        tensors = [{**dict(task.named_parameters()), **dict(task.named_buffers())} for task in tasks]
        names = [name for name, tensor in tensors[0].items() if id(tensor) not in trained]
        return {name: stack_in_place([of_lane[name] for of_lane in tensors]) for name in names}

    def _names_of_trained(self) -> list[list[str]]:
        names = {id(parameter): name for name, parameter in self._first.task.named_parameters()}
        return [[names[id(parameter)] for parameter in weights.parameters[0]] for weights in self._trained()]

    def _trained(self) -> Iterator[StackedWeights]:
        return (
            weights
            for of_optimizer in self._weights.values()
            for weights in of_optimizer
            if weights is not None
        )

    def _by_identity(self) -> dict[int, Tensor]:
        """Return the stacked weights and buffers by the `id` of the tensor of the first lane."""
        task = self._first.task
        tensors = {**dict(task.named_parameters()), **dict(task.named_buffers())}
        stacked = {id(tensors[name]): value for name, value in self._rest.items()}
        for weights in self._trained():
            stacked |= zip(
                map(id, weights.parameters[0]), weights.stacked(weights.rows.detach()), strict=True
            )
        return stacked

    # ---- gradients

    def _accumulate(self, num_updates: int) -> list[Outcome]:
        """Accumulate the gradients of the next update; return what each micro-batch gave, with the lanes in front."""
        plan, spec = self._plan, self._plan.spec
        for weights in self._trained():
            weights.rows.grad = None
        usual, loss_weight = (
            spec.micro_batch_size * plan.targets_per_sample,
            1.0 / spec.num_micro_steps(num_updates),
        )
        outcomes = list[Outcome]()
        for micro_step, batch in enumerate(self._stream.micro_batches(num_updates)):
            drawn = self._draw(num_updates, micro_step)
            with plan.precision.autocast():
                outcome = self._call(plan.precision.cast(batch), drawn)
            outcomes.append(outcome)
            if isinstance(outcome.num_targets, Tensor) or outcome.num_targets:
                loss = outcome.total_loss()
                factors = torch.full_like(loss, loss_weight) * (outcome.num_targets / usual)
                loss.backward(factors.to(loss.dtype))
        self._scale_to_mean(outcomes, spec.batch_sizes.value(num_updates) * plan.targets_per_sample)
        return outcomes

    def _scale_to_mean(self, outcomes: Sequence[Outcome], usual: int) -> None:
        """Divide by the number of the targets that there were, instead of their usual number."""
        num_targets = sum(outcome.num_targets for outcome in outcomes)
        if isinstance(num_targets, Tensor):
            factors = (usual / num_targets.clamp(min=1))[:, None]
        elif num_targets in (usual, 0):
            return
        else:
            factors = usual / num_targets
        for weights in self._trained():
            if weights.rows.grad is not None:
                weights.rows.grad.mul_(factors)

    def _call(self, batch: Batch, drawn: Sequence[Tensor]) -> Outcome:
        weights = self._rest.copy()
        for names, stacked in zip(self._names, self._trained(), strict=True):
            weights |= zip(names, stacked.stacked(stacked.rows), strict=True)
        numbers = [number.expand(len(self.lanes)) for number in self._numbers]
        call = partial(self._task, weights, numbers, drawn, batch)
        try:
            with self._attention():
                return call()
        except (RuntimeError, TypeError, ValueError, DecidesByNumber) as error:
            if is_out_of_memory(error) or self._compilation.is_on:
                raise
            raise explain_failure(error, self._task.failing_part(call)) from error

    def _attention(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which attention can be mapped: torch maps its kernel for the CPU lane by lane."""
        return sdpa_kernel(SDPBackend.MATH) if self._device.type == "cpu" else contextlib.nullcontext()

    def _draw(self, num_updates: int, micro_step: int) -> list[Tensor]:
        """Draw the random numbers of every lane, (lanes, ...) each, in the order in which the task uses them."""
        known = dict[
            tuple[int, int], list[Tensor]
        ]()  # lanes with the same seed and model draw the same numbers
        by_lane = list[list[Tensor]]()
        for lane, draws in zip(self.lanes, self._draws, strict=False):
            seed = lane.plan.spec.seed
            if (drawn := known.get((seed, id(draws)))) is None:
                seeding.seed_micro_step(seed, num_updates, micro_step, self._device)
                drawn = known[seed, id(draws)] = [draw() for draw in draws]
            by_lane.append(drawn)
        return [torch.stack(column) for column in zip(*by_lane, strict=True)]

    # ---- clipping and steps

    @torch.no_grad()
    def _clip(self, *, measure: bool) -> dict[str, Tensor]:
        """Clip the gradients; return their norms before clipping, (lanes,), as `Optimizers` does for one run."""
        norms = dict[str, Tensor]()
        for name, of_optimizer in self._weights.items():
            clippings = [lane.optimizers.entries[name].clipping for lane in self.lanes]
            rows = [w.rows.grad for w in of_optimizer if w is not None and w.rows.grad is not None]
            needs_norm = (
                measure or self._first.optimizers.skips_non_finite or clippings[0].max_norm is not None
            )
            if needs_norm and rows:
                each = torch.stack([torch.linalg.vector_norm(row, dim=1) for row in rows])
                norms[f"{metric_prefix(name)}grad_norm"] = norm = torch.linalg.vector_norm(each, dim=0)
                if clippings[0].max_norm is not None:
                    limits = self._column([clipping.max_norm for clipping in clippings], norm)
                    for row in rows:
                        row.mul_((limits / (norm + 1e-6)).clamp(max=1.0)[:, None])
            if clippings[0].max_value is not None:
                for row in rows:
                    limits = self._column([clipping.max_value for clipping in clippings], row)[:, None]
                    row.copy_(row.clamp(-limits, limits))
            if clippings[0].agc is not None:
                self._show_gradients()
                for lane in self.lanes:
                    lane.optimizers.entries[name].clipping(lane.optimizers.entries[name].parameters, None)
        return norms

    def _column(self, values: Sequence[float | None], like: Tensor) -> Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device)

    def _not_finite(self, outcomes: Sequence[Outcome], norms: Mapping[str, Tensor]) -> list[int]:
        """Return the lanes whose losses or gradients are NaN or infinite; waits for the device."""
        values = [outcome.total_loss().detach() for outcome in outcomes] + list(norms.values())
        is_finite = torch.stack([value.isfinite() for value in values]).all(dim=0).tolist()
        return [n for n, finite in enumerate(is_finite) if not finite]

    def _step(self, num_updates: int, skipped: Sequence[int], buffers: Mapping[str, Tensor]) -> None:
        """Apply the gradients, but not those of skipped lanes."""
        for n in skipped:
            for name, before in buffers.items():
                self._rest[name][n].copy_(before[n])
        for name in self._weights:
            have_states = len(self._applied) == len(self.lanes)
            optimizer = self._optimizer(name) if have_states else None
            numbers = self._scheduled(name, num_updates)
            if optimizer is None or not optimizer.prepare(numbers):
                self._step_alone(name, num_updates, skipped)
                continue
            kept = [(tensor, tensor[skipped].clone()) for tensor in optimizer.tensors()] if skipped else []
            optimizer.step(numbers)
            for tensor, before in kept:
                tensor[skipped] = before

    def _optimizer(self, name: str) -> StackedOptimizer | None:
        """Return an optimizer of all lanes; None if the lanes must make their steps alone."""
        if name not in self._optimizers:
            optimizers = [lane.optimizers.entries[name].optimizer for lane in self.lanes]
            try:
                self._optimizers[name] = StackedOptimizer(optimizers, self._weights[name], self._device)
            except CannotStack:
                self._optimizers[name] = None
        return self._optimizers[name]

    def _step_alone(self, name: str, num_updates: int, skipped: Sequence[int]) -> None:
        """Let every lane make the step of its own optimizer."""
        self._show_gradients()
        for n, lane in enumerate(self.lanes):
            if n not in skipped:
                lane.optimizers.schedules.write(num_updates)
                lane.optimizers.entries[name].step()

    def _scheduled(self, name: str, num_updates: int) -> list[dict[str, list[float]]]:
        """Return the values of the scheduled fields of each group of an optimizer, for every lane."""
        numbers: list[dict[str, list[float]]] = [{} for _ in self._weights[name]]
        for key in self._first.optimizers.schedules.fields:
            optimizer, position, field = key.split(".", 2)
            if optimizer == name:
                fields = [lane.optimizers.schedules.fields[key] for lane in self.lanes]
                numbers[int(position)][field] = [f.value(num_updates) for f in fields]
        return numbers

    def _show_gradients(self) -> None:
        for weights in self._trained():
            weights.show_gradients()

    # ---- counting

    def _counted(self, num_targets: int | Tensor, skipped: Sequence[int]) -> int | Tensor:
        """Return the weight of the metrics of each lane: 0 for a lane whose update is skipped."""
        if not skipped:
            return num_targets
        weights = torch.ones(len(self.lanes), dtype=torch.float64, device=self._device) * num_targets
        weights[list(skipped)] = 0
        return weights

    def _finish(self, lane: Trainer, is_skipped: bool, norms: Mapping[str, Tensor], n: int) -> LaneUpdate:
        if is_skipped and n not in self._failed:
            try:
                skip_update(lane, [], has_overflowed=False)
            except NonFiniteError as error:
                self._failed.add(n)
                return error
        elif not is_skipped:
            self._applied.add(n)
            lane.state.num_skipped_in_a_row = 0
        lane.state.num_updates += 1
        status = "not_finite" if is_skipped else "applied"
        return Update([], None, status, {} if is_skipped else {name: norm[n] for name, norm in norms.items()})
