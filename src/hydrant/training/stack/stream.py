"""The batches of all lanes, stacked."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hydrant import seeding
from hydrant.batch import Batch, tensors_of, with_tensors
from hydrant.data.base import SampleOrder
from hydrant.data.in_memory import DeviceStream
from hydrant.data.mixup import NoMixing
from hydrant.training.stack.distinct import distinct
from hydrant.training.trainer import Trainer

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
            yield with_tensors(mixed, map(self._for_lanes, tensors_of(mixed))) if self._is_shared else mixed

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
            yield with_tensors(chunk, [_aligned(column[place]) for column in columns])

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
        if isinstance(self._plan.mixing, NoMixing):
            return batch
        columns = [tensor.unbind() for tensor in tensors_of(batch)]
        mixed = [
            lane.plan.mixing(with_tensors(batch, tensors), lane.plan.spec.seed, num_updates, micro_step)
            for lane, *tensors in zip(self._readers, *columns, strict=True)
        ]
        return _stack(mixed)

    def _for_lanes(self, tensor: Tensor) -> Tensor:
        return tensor.index_select(0, self._places)


def _stack(batches: Sequence[Batch]) -> Batch:
    columns = zip(*map(tensors_of, batches), strict=True)
    return with_tensors(batches[0], [torch.stack(column) for column in columns])


_ALIGNMENT = 64  # bytes


def _aligned(tensor: Tensor) -> Tensor:
    return tensor if tensor.data_ptr() % _ALIGNMENT == 0 else tensor.clone()
