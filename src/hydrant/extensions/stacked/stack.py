"""`Stack`: the next update of several runs at once, with the batches and the metrics of all lanes."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from hydrant import seeding
from hydrant.batch import Batch, Outcome, tensors_of, with_tensors
from hydrant.data.base import SampleOrder
from hydrant.data.in_memory import DeviceStream
from hydrant.errors import first_line, location
from hydrant.extensions.stacked import forward
from hydrant.extensions.stacked.lanes import CannotStack, StackedTensors, distinct
from hydrant.extensions.stacked.optimizer import StackedAverages, StackedSteps
from hydrant.training.compilation import Compilation, Eager, Gradients
from hydrant.training.costs import is_out_of_memory
from hydrant.training.metrics import mean_over_targets
from hydrant.training.trainer import Trainer

_MAX_PENDING = 64  # calls of `add` whose values are summed together


class StackedMeter:
    """Sums the metrics of all lanes on the device, and gives each lane its own when it reads them.

    Args:
        lanes: the runs of a stack.
    """

    def __init__(self, lanes: Sequence[Trainer]) -> None:
        self._lanes = list(lanes)
        self._names: list[str] = []
        self._pending: list[Tensor] = []  # (lanes, metrics and 1), float64, for each call
        self._weights: list[Tensor] = []  # (lanes,), float64, for each call
        self._sums: Tensor | int = 0  # (lanes, metrics and weight)

    def add(self, values: Mapping[str, Tensor], weights: Tensor | int) -> None:
        """Add means of each lane: numbers, (lanes,), or bool tensors, (lanes, ...), of which the mean is taken.

        Args:
            values: by name, the same names at every call.
            weights: the number of targets of each lane, (lanes,), or of all of them. A lane of weight 0 is left out.
        """
        if isinstance(weights, int) and not weights:
            return
        self._names = list(values)
        means = [mean_over_targets(value.detach()) for value in values.values()]
        ones = torch.ones_like(means[0])
        self._pending.append(torch.stack([*means, ones], dim=1))
        self._weights.append(ones * weights)
        if len(self._pending) >= _MAX_PENDING:
            self._fold()

    def flush(self) -> None:
        """Give the lanes what was added since the last call."""
        self._fold()
        if isinstance(self._sums, Tensor):
            for trainer, sums in zip(self._lanes, self._sums, strict=True):
                trainer.meter.add_sums(self._names, sums[:-1], sums[-1])
        self._sums = 0

    def _fold(self) -> None:
        if self._pending:
            rows, weights = torch.stack(self._pending, dim=1), torch.stack(self._weights, dim=1)[:, :, None]
            rows = rows.where(weights != 0, 0.0)  # the mean of a lane that is left out may be NaN
            self._sums = self._sums + (rows * weights).sum(1)
        self._pending, self._weights = [], []


_CHUNK_BYTES = 16 * 2**20  # of inputs that are made at once, for several micro-batches
_MAX_UPDATES = 64  # in a chunk


@dataclass
class StackedOrder(SampleOrder):
    """The draws of runs of several seeds, (seeds, count)."""

    seeds: Sequence[int] = ()

    def permutation(self, epoch: int) -> Tensor:
        return torch.stack([seeding.permutation(seed, epoch, self.num_samples) for seed in self.seeds])


class StackedStream:
    """The micro-batches of an update for all lanes: every tensor has the lanes in front.

    The samples of a lane are those of its run alone. Lanes with the same seed share them. Data on the device are read
    for several micro-batches at once, and by one call for all lanes if their batches do not depend on a seed.
    """

    def __init__(self, lanes: Sequence[Trainer]) -> None:
        self._plan = lanes[0].plan
        seeds = [lane.plan.spec.seed for lane in lanes]
        first_lanes, places = distinct(seeds)
        self._readers = [lanes[n] for n in first_lanes]
        self._is_shared = len(first_lanes) < len(lanes)
        self._places = torch.tensor(places, device=self._plan.world.device)
        self._chunk = deque[Batch]()  # micro-batches of all readers
        self._next = -1  # the position of the first of them
        streams = [lane.stream for lane in self._readers]
        self._on_device = [stream for stream in streams if isinstance(stream, DeviceStream)]
        self._num_at_once = 0  # micro-batches in a chunk, known after the first read
        self._order = self._common_order([seeds[n] for n in first_lanes])

    def micro_batches(self, num_updates: int) -> Iterator[Batch]:
        """Yield the micro-batches of the update after `num_updates` completed ones, mixed."""
        for micro_step, batch in enumerate(self._read(num_updates)):
            mixed = self._mixed(batch, num_updates, micro_step)
            for_lanes = (tensor.index_select(0, self._places) for tensor in tensors_of(mixed))
            yield with_tensors(mixed, for_lanes) if self._is_shared else mixed

    def _common_order(self, seeds: Sequence[int]) -> StackedOrder | None:
        """Return the order of the samples of all readers, if one of them can read for all."""
        kinds = [stream.reader.seedless for stream in self._on_device]
        if not kinds or kinds[0] is None or any(kind is not kinds[0] for kind in kinds):
            return None
        order = self._on_device[0].order
        return StackedOrder(order.seed, order.num_samples, order.device, seeds=seeds)

    def _read(self, num_updates: int) -> Iterator[Batch]:
        """Yield the micro-batches of an update, of all readers."""
        if not self._on_device:
            streams = (lane.stream.micro_batches(num_updates) for lane in self._readers)
            yield from map(_stack, zip(*streams, strict=True))
            return
        spec = self._plan.spec
        for position in spec.positions(num_updates):
            if position != self._next or not self._chunk:
                self._chunk = deque(self._read_chunk(self._positions_at_once(num_updates, position)))
            self._next = position + spec.micro_batch_size
            yield self._chunk.popleft()

    def _read_chunk(self, positions: Sequence[int]) -> Iterator[Batch]:
        """Yield the micro-batches at these positions, which are read at once."""
        chunk = self._read_each(positions) if self._order is None else self._read_all(self._order, positions)
        columns = list(tensors_of(chunk))
        for place in range(len(positions)):
            # Each micro-batch is contiguous, and lies in memory of its own, as kernels depend on the alignment.
            parts = [column[place] for column in columns]
            yield with_tensors(chunk, [p if p.data_ptr() % _ALIGNMENT == 0 else p.clone() for p in parts])

    def _positions_at_once(self, num_updates: int, position: int) -> Sequence[int]:
        """Return the positions of the micro-batches that are read together, from one in an update on."""
        spec, clock = self._plan.spec, self._plan.clock
        if not self._num_at_once:
            inputs = self._on_device[0].read([position]).inputs
            num_bytes = len(self._readers) * sum(tensor.nbytes for tensor in tensors_of(inputs))
            self._num_at_once = max(_CHUNK_BYTES // max(num_bytes, 1), 1)
        end = spec.batch_sizes.total(min(num_updates + _MAX_UPDATES, clock.total_updates))
        return range(position, end, spec.micro_batch_size)[: self._num_at_once]

    def _read_all(self, order: StackedOrder, positions: Sequence[int]) -> Batch:
        """Return the micro-batches at these positions by one call for all readers: (positions, readers, ...) each."""
        size = self._plan.spec.micro_batch_size
        draws = order.draws(positions[0], len(positions) * size).unflatten(1, (len(positions), size))
        chunk = self._on_device[0].reader.train_batch(draws.transpose(0, 1).flatten())
        shape = (len(positions), len(self._readers), size)
        return with_tensors(chunk, [tensor.unflatten(0, shape) for tensor in tensors_of(chunk)])

    def _read_each(self, positions: Sequence[int]) -> Batch:
        """Return the micro-batches at these positions, read by one reader after the other."""
        chunks = [stream.read(positions) for stream in self._on_device]
        columns = zip(*map(tensors_of, chunks), strict=True)
        split = ([tensor.unflatten(0, (len(positions), -1)) for tensor in column] for column in columns)
        return with_tensors(chunks[0], [torch.stack(column, dim=1) for column in split])

    def _mixed(self, batch: Batch, num_updates: int, micro_step: int) -> Batch:
        """Mix the micro-batch of each reader as alone."""
        if not self._plan.mixing:
            return batch
        columns = [tensor.unbind() for tensor in tensors_of(batch)]
        mixed = [
            lane.plan.mixing(with_tensors(batch, tensors), lane.plan.spec.seed, num_updates, micro_step)
            for lane, *tensors in zip(self._readers, *columns, strict=True)
        ]
        return _stack(mixed)


def _stack(batches: Sequence[Batch]) -> Batch:
    columns = zip(*map(tensors_of, batches), strict=True)
    return with_tensors(batches[0], [torch.stack(column) for column in columns])


_ALIGNMENT = 64  # bytes


_COPIES_OF_WEIGHTS = 6
"""A lane takes about this many times the memory of its weights: weights, gradients, two optimizer states, an average,
and what a step allocates."""

T = TypeVar("T")


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
        self._draws = forward.StackedDraws(lanes)
        numbers = forward.differing_numbers([lane.task for lane in lanes])
        self._numbers = [
            torch.tensor(values, dtype=torch.float64, device=self._device) for values in numbers.values()
        ]
        self._task = forward.StackedTask(self._first.task, list(numbers))
        compilation = self._plan.compilation
        self._compilation: Compilation = Eager(self._plan.world)
        if isinstance(compilation, forward.LaneCompilation) and compilation.of_stack.is_on:
            self._compilation = compilation.of_stack
            self._compilation.apply(self._task, retains_graph=False)
        self._tensors = StackedTensors(lanes, self._draws.unused)
        self._steps = StackedSteps(lanes, self._tensors)
        self._averages = StackedAverages(lanes, self._tensors.by_identity())
        self._stream, self._meter = StackedStream(lanes), StackedMeter(lanes)
        self.num_updates = self._first.state.num_updates
        """Completed updates."""
        self._compilation.check_first(self._gradients, self._plan, self.num_updates)

    def update(self, *, measure: bool, show_gradients: bool = False) -> dict[str, Tensor]:
        """Make the next update of every lane and count it.

        Args:
            measure: return the gradient norms too.
            show_gradients: give the parameters of every lane their gradients.

        Returns:
            the norms of the gradients before clipping, (lanes,), by name; those that were measured or needed.
        """
        outcomes = self._accumulate(self.num_updates)
        norms = self._steps.clip(measure=measure)
        if show_gradients:
            self._tensors.show_gradients()
        self._steps.apply(self.num_updates)
        self.num_updates += 1
        self._averages.update(self.num_updates)
        for outcome in outcomes:
            self._meter.add(outcome.scalars(), outcome.num_targets)
        for lane in self.lanes:
            lane.state.num_updates += 1
        self._compilation.check_recompiles(self.num_updates)
        return norms

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
        weights = sum(weights.rows.nbytes for weights in self._tensors.trained())
        rest = sum(tensor.nbytes for tensor in self._tensors.rest.values())
        return (_COPIES_OF_WEIGHTS * weights + rest + sum(kept)) // len(self.lanes)

    def sync(self) -> None:
        """Give the lanes their metrics and the values of their schedules, before they log or save."""
        self._meter.flush()
        for lane in self.lanes:
            lane.optimizers.schedules.write(max(lane.state.num_updates - 1, 0))

    def _try_forward(self, use: Callable[[Outcome], T]) -> T:
        """Return what a function makes of the outcome of the next micro-batch; the buffers keep their values."""
        num_updates = self.num_updates
        before = {name: tensor.clone() for name, tensor in self._tensors.rest.items()}
        batch = next(iter(self._stream.micro_batches(num_updates)))
        with self._plan.precision.autocast():
            outcome = self._call(self._plan.precision.cast(batch), self._draws.draw(num_updates, 0))
        result = use(outcome)
        for name, value in before.items():
            self._tensors.rest[name].copy_(value)
        return result

    def _gradients(self) -> Gradients:
        """Return the sum of the losses of all lanes for the next micro-batch, and its gradients."""

        def gradients(outcome: Outcome) -> Gradients:
            loss = outcome.total_loss().sum()
            rows = torch.autograd.grad(loss, [weights.rows for weights in self._tensors.trained()])
            return loss.detach(), self._tensors.named(rows)

        return self._try_forward(gradients)

    # ---- gradients

    def _accumulate(self, num_updates: int) -> list[Outcome]:
        """Accumulate the gradients of the next update; return what each micro-batch gave, with the lanes in front."""
        plan, spec = self._plan, self._plan.spec
        for weights in self._tensors.trained():
            weights.rows.grad = None
        usual = spec.micro_batch_size * plan.targets_per_sample
        num_parts = spec.num_micro_steps(num_updates)
        outcomes = list[Outcome]()
        for micro_step, batch in enumerate(self._stream.micro_batches(num_updates)):
            drawn = self._draws.draw(num_updates, micro_step)
            with plan.precision.autocast():
                outcome = self._call(plan.precision.cast(batch), drawn)
            outcomes.append(outcome)
            if isinstance(outcome.num_targets, Tensor) or outcome.num_targets:
                loss = outcome.total_loss()
                share = outcome.num_targets / usual if num_parts > 1 else 1
                loss.backward((torch.full_like(loss, 1 / num_parts) * share).to(loss.dtype))
        if num_parts > 1:
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
        for weights in self._tensors.trained():
            if weights.rows.grad is not None:
                weights.rows.grad.mul_(factors)

    def _call(self, batch: Batch, drawn: Sequence[Tensor]) -> Outcome:
        numbers = [number.expand(len(self.lanes)) for number in self._numbers]
        try:
            return self._task(self._tensors.by_name(), numbers, drawn, batch)
        except (RuntimeError, TypeError, ValueError) as error:
            if is_out_of_memory(error) or self._compilation.is_on:
                raise
            why = f"{first_line(error)}, at {location(error)}"
            name = type(self._first.model).__name__
            raise CannotStack(f"{name} cannot run for several runs at once ({why})") from error
