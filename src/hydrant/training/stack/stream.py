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
from hydrant.training.trainer import Trainer

_CHUNK_BYTES = 16 * 2**20  # of inputs that are made at once, for several updates
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
    for several updates at once, and by one call for all lanes if their batches do not depend on a seed.
    """

    def __init__(self, lanes: Sequence[Trainer]) -> None:
        self._plan = lanes[0].plan
        seeds = [lane.plan.spec.seed for lane in lanes]
        places = {seed: place for place, seed in enumerate(dict.fromkeys(seeds))}
        first = {seed: lane for seed, lane in zip(reversed(seeds), reversed(lanes), strict=True)}
        self._readers = [first[seed] for seed in places]
        self._is_shared = len(places) < len(lanes)
        self._places = torch.tensor([places[seed] for seed in seeds], device=self._plan.world.device)
        self._chunk = deque[Batch]()  # micro-batches of all readers
        self._next = -1  # the update to which the first of them belongs
        streams = [lane.stream for lane in self._readers]
        self._on_device = [stream for stream in streams if isinstance(stream, DeviceStream)]
        self._bytes_of_sample = 0  # on the device, known after the first read
        self._order = self._common_order(list(places))

    def micro_batches(self, num_updates: int) -> Iterator[Batch]:
        """Yield the micro-batches of the update after `num_updates` completed ones, mixed."""
        if self._next != num_updates or not self._chunk:
            self._chunk = deque(self._read(num_updates))
        self._next = num_updates + 1
        for micro_step in range(self._plan.spec.num_micro_steps(num_updates)):
            batch = self._mixed(self._chunk.popleft(), num_updates, micro_step)
            yield with_tensors(batch, map(self._for_lanes, tensors_of(batch))) if self._is_shared else batch

    def _common_order(self, seeds: Sequence[int]) -> StackedOrder | None:
        """Return the order of the samples of all readers, if one of them can read for all."""
        kinds = [stream.reader.seedless for stream in self._on_device]
        if not kinds or kinds[0] is None or any(kind is not kinds[0] for kind in kinds):
            return None
        order = self._on_device[0].order
        return StackedOrder(order.seed, order.num_samples, order.device, seeds=seeds)

    def _read(self, num_updates: int) -> Iterator[Batch]:
        """Yield the micro-batches of this update, and of the following ones if the data are on the device."""
        if not self._on_device:
            streams = (lane.stream.micro_batches(num_updates) for lane in self._readers)
            for batches in zip(*streams, strict=True):
                yield _stack(batches)
            return
        positions = self._positions_at_once(num_updates)
        chunk = self._read_each(positions) if self._order is None else self._read_all(self._order, positions)
        columns = list(tensors_of(chunk))
        for place in range(len(positions)):
            # Each micro-batch is contiguous, and lies in memory of its own, as kernels depend on the alignment.
            yield with_tensors(chunk, [_aligned(column[place]) for column in columns])

    def _positions_at_once(self, num_updates: int) -> list[int]:
        """Return the positions of the micro-batches that are read next, from those of an update on."""
        spec = self._plan.spec
        if not self._bytes_of_sample:
            sample = self._on_device[0].read(spec.positions(num_updates)[:1])
            num_bytes = sum(tensor.nbytes for tensor in tensors_of(sample.inputs))
            self._bytes_of_sample = max(num_bytes // spec.micro_batch_size, 1)
        num_bytes = self._bytes_of_sample * spec.batch_sizes.value(num_updates) * len(self._readers)
        last = min(num_updates + _MAX_UPDATES, self._plan.clock.total_updates)
        end = min(num_updates + max(_CHUNK_BYTES // num_bytes, 1), last)
        return [at for update in range(num_updates, end) for at in spec.positions(update)]

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
