"""The batches of all lanes, stacked."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hydrant.batch import Batch, tensors_of, with_tensors
from hydrant.data.in_memory import DeviceStream
from hydrant.data.mixup import NoMixing
from hydrant.training.trainer import Trainer

_CHUNK_BYTES = 16 * 2**20  # of inputs that are made at once, for several updates
_MAX_UPDATES = 64  # in a chunk


class StackedStream:
    """The micro-batches of an update for all lanes: every tensor has the lanes in front.

    Each lane reads its own stream, so its samples are those of its run alone. Lanes with the same seed share one. Data
    on the device are read for several updates at once.
    """

    def __init__(self, lanes: Sequence[Trainer]) -> None:
        self._plan = lanes[0].plan
        seeds = [lane.plan.spec.seed for lane in lanes]
        places = {seed: place for place, seed in enumerate(dict.fromkeys(seeds))}
        self._readers = [lanes[seeds.index(seed)] for seed in places]
        self._is_shared = len(places) < len(lanes)
        self._places = torch.tensor([places[seed] for seed in seeds], device=self._plan.world.device)
        self._chunk = deque[Batch]()  # micro-batches of all readers
        self._next = -1  # the update to which the first of them belongs

    def micro_batches(self, num_updates: int) -> Iterator[Batch]:
        """Yield the micro-batches of the update after `num_updates` completed ones, mixed."""
        if self._next != num_updates or not self._chunk:
            self._chunk = deque(self._read(num_updates))
        self._next = num_updates + 1
        for micro_step in range(self._plan.spec.num_micro_steps(num_updates)):
            batch = self._mixed(self._chunk.popleft(), num_updates, micro_step)
            yield with_tensors(batch, map(self._for_lanes, tensors_of(batch))) if self._is_shared else batch

    def _read(self, num_updates: int) -> Iterator[Batch]:
        """Yield the micro-batches of this update, and of the following ones if the data are on the device."""
        streams = [lane.stream for lane in self._readers]
        if not isinstance(streams[0], DeviceStream):
            for batches in zip(*(stream.micro_batches(num_updates) for stream in streams), strict=True):
                yield _stack(batches)
            return
        spec = self._plan.spec
        last = min(num_updates + _MAX_UPDATES, self._plan.clock.total_updates)
        positions = [at for update in range(num_updates, last) for at in spec.positions(update)]
        num_steps = spec.num_micro_steps(num_updates)
        first = [stream.read(positions[:num_steps]) for stream in streams if isinstance(stream, DeviceStream)]
        num_bytes = sum(tensor.nbytes for batch in first for tensor in tensors_of(batch.inputs))
        num_updates_at_once = min(max(_CHUNK_BYTES // max(num_bytes, 1), 1), last - num_updates)
        end = spec.batch_sizes.total(num_updates + num_updates_at_once)
        positions = [at for at in positions if at < end]
        chunks = [stream.read(positions) for stream in streams if isinstance(stream, DeviceStream)]
        columns = [
            # Each micro-batch is contiguous, and lies in memory of its own, as kernels depend on the alignment.
            torch.stack([t.view(len(positions), -1, *t.shape[1:]) for t in tensors], dim=1)
            for tensors in zip(*map(tensors_of, chunks), strict=True)
        ]
        for place in range(len(positions)):
            yield with_tensors(chunks[0], [_aligned(column[place]) for column in columns])

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
