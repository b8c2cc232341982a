"""Data that stay on the device: no DataLoader, no host copies, no synchronization.

Copies of batches from the host to the device of a run.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hydrant.batch import Batch, Tensors, is_inexact, leaves_of, map_tensors, split_batch, tensors_of
from hydrant.data.base import Indices, Reader, SampleOrder, StreamSpec, as_labels, batch_ranges, rounded
from hydrant.errors import ConfigError

Augment = Callable[[Tensor, Tensor, int], Tensor]
"""`(images (B, C, H, W), draws (B,), seed) -> images`: random, but a pure function of `(seed, draw)`.

An augmentation whose truth value is false changes nothing and is not called. If it has a method
`for_samples(num_samples)`, the result of that method is used instead."""


class DeviceReader(Protocol):
    """Makes batches on the device from draws."""

    @property
    def seedless(self) -> object:
        """Readers of the same such object make the same batch of the same draws, whatever their seed; None: this
        one's batches depend on its seed."""
        ...

    def train_batch(self, draws: Tensor) -> Batch: ...


_CHUNK_BYTES = 4 * 2**20  # made at once, because launching a small batch takes as long as making it
_MAX_UPDATES = 64  # in a chunk
_ALIGNMENT = 64  # bytes


@dataclass
class DeviceStream:
    """The training stream over a `DeviceReader`. Small batches of several updates are made at once, in a chunk."""

    reader: DeviceReader
    order: SampleOrder
    spec: StreamSpec
    # By position. Each is yielded once, because the model may write into it.
    _batches: dict[int, Batch] = field(default_factory=dict[int, Batch], init=False)
    _chunk_updates: int = field(default=1, init=False)  # updates in the next chunk
    # Every earlier update was made. If one is read again, it is remade alone.
    _end: int = field(default=0, init=False)

    def micro_batches(self, num_updates: int) -> Iterator[Batch]:
        for position in self.spec.positions(num_updates):
            if position not in self._batches:
                self._make_chunk(num_updates, 1 if num_updates < self._end else self._chunk_updates)
            yield self._batches.pop(position)

    def read(self, positions: Sequence[int]) -> Batch:
        """Return the micro-batches at these positions, which follow each other, as one batch."""
        size = self.spec.micro_batch_size
        # On several ranks, the draws of the other ranks lie between two micro-batches of this one.
        num_adjacent = len(positions) if self.spec.world_size == 1 else 1
        draws = [self.order.draws(at, num_adjacent * size) for at in positions[::num_adjacent]]
        return self.reader.train_batch(torch.cat(draws))

    def _make_chunk(self, start: int, count: int) -> None:
        size, self._end = self.spec.micro_batch_size, max(self._end, start + count)
        positions = [at for update in range(start, start + count) for at in self.spec.positions(update)]
        chunk = self.read(positions)
        parts = (split_batch(part, size, len(positions)) for part in chunk)
        batches = list(itertools.starmap(Batch, zip(*parts, strict=True)))
        self._batches |= zip(positions, batches, strict=True)
        # Kernels depend on the alignment of a batch, and a resumed run has other chunks. Therefore batches that would
        # be unaligned inside a chunk are made alone.
        numbers = (tensor for tensor in tensors_of(batches[0]) if is_inexact(tensor))
        is_aligned = all(tensor.nbytes % _ALIGNMENT == 0 for tensor in numbers)
        num_bytes = sum(tensor.nbytes for tensor in tensors_of(chunk.inputs))
        num_fitting = _CHUNK_BYTES * count // max(num_bytes, 1) if is_aligned else 1
        self._chunk_updates = min(max(num_fitting, 1), _MAX_UPDATES)

    def close(self) -> None:
        """Do nothing, because there are no workers."""


def device_batches(
    read: Callable[[Tensor], Batch], num_samples: int, spec: StreamSpec, batch_size: int
) -> Iterator[Batch]:
    """Yield the evaluation batches of this rank, which `read` makes of the indices of samples on the device."""
    for indices in batch_ranges(num_samples, batch_size, spec.rank, spec.world_size):
        yield read(torch.arange(indices.start, indices.stop, device=spec.device))


@dataclass(frozen=True)
class InMemorySource:
    """Samples in tensors, which are copied to the device once.

    A tensor of uint8 `inputs` (N, *input_shape) is scaled to 0..1 and normalized when a batch is read. Floats are
    normalized once, or when a batch is read if they are augmented. `mean` and `std` are per channel, for pixels in
    0..1; floats without them are used as they are. So are other integers, inputs that are a dict, a tuple or a
    dataclass of tensors, and uint8 that holds no pixels. With `rounds_doubles` they become float32, unless the run
    trains in float64.
    """

    inputs: Tensors
    targets: Tensors
    mean: Sequence[float] = (0.0,)
    std: Sequence[float] = (1.0,)
    augment: Augment | None = None
    has_pixels: bool = True
    rounds_doubles: bool = False
    _on_device: dict[object, tuple[Tensors, Tensors, Tensor, Tensor]] = field(
        default_factory=dict[Any, Any], init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        leaves, message = list(leaves_of((self.inputs, self.targets))), ""
        for leaf in leaves:
            if not isinstance(leaf, Tensor) or not leaf.ndim or leaf.layout is not torch.strided:
                is_tensor = isinstance(leaf, Tensor)
                kind = f"tensor {leaf.layout} {list(leaf.shape)}" if is_tensor else type(leaf).__name__
                message = f"holds a {kind}; it needs dense tensors whose first dimension is the sample"
        if not message and len(lengths := {*map(len, leaves)}) != 1:
            counts = " and ".join(map(str, sorted(lengths))) or "no"
            message = f"its tensors have {counts} samples; they need the same number"
        if message:
            raise ConfigError("data", message)

    @property
    def num_samples(self) -> int:
        return Batch(self.inputs, self.targets).num_samples

    @property
    def labels(self) -> np.ndarray | None:
        return as_labels(self.targets, self.num_samples)

    def stream(self, spec: StreamSpec) -> DeviceStream:
        order = SampleOrder(spec.seed, self.num_samples, spec.device)
        return DeviceStream(_InMemoryReader.load(self, spec), order, spec)

    def batches(self, spec: StreamSpec, batch_size: int) -> Iterable[Batch]:
        return device_batches(_InMemoryReader.load(self, spec).eval_batch, self.num_samples, spec, batch_size)

    def subset(self, indices: Indices) -> InMemorySource:
        # A slice of a tensor is a view, which takes no memory.
        chosen = slice(indices.start, indices.stop, indices.step) if isinstance(indices, range) else indices
        inputs, targets = map_tensors(lambda tensor: tensor[chosen], (self.inputs, self.targets))
        return replace(self, inputs=inputs, targets=targets)

    @property
    def is_normalized_once(self) -> bool:
        """Whether `on` normalizes the inputs: only floats without augmentation, because uint8 takes less memory."""
        is_floats = isinstance(self.inputs, Tensor) and self.inputs.is_floating_point()
        return is_floats and bool(self.mean) and not self.augment

    def on(self, spec: StreamSpec) -> tuple[Tensors, Tensors, Tensor, Tensor]:
        """Return `inputs`, `targets`, `mean` and `std` on the device, and keep them there for the next call."""
        key = spec.device, self.rounds_doubles and spec.doubles
        if key not in self._on_device:
            tensors = self.inputs, self.targets
            inputs, targets = rounded(tensors, spec.doubles) if self.rounds_doubles else tensors
            first = next(tensors_of(inputs))
            dtype = torch.float64 if first.dtype is torch.float64 else torch.float32
            statistics = (
                torch.tensor(v, dtype=dtype).view(-1, *(1,) * (first.ndim - 2)) for v in (self.mean, self.std)
            )
            inputs, targets, mean, std = map_tensors(
                lambda tensor: tensor.to(spec.device), (inputs, targets, *statistics)
            )
            if self.is_normalized_once:
                inputs = (inputs - mean) / std
            self._on_device[key] = inputs, targets, mean, std
        return self._on_device[key]


def tensor_reader(mean: Sequence[float] = (0.0,), std: Sequence[float] = (1.0,)) -> Reader:
    """Return the reader of inputs in memory, which are normalized as those of an `InMemorySource`."""
    return Reader(tensors=lambda inputs: InMemorySource(inputs, (), tuple(mean), tuple(std)))


@dataclass(frozen=True)
class _InMemoryReader:
    source: InMemorySource
    augment: Augment | None
    seed: int
    inputs: Tensors
    targets: Tensors
    mean: Tensor
    std: Tensor

    @classmethod
    def load(cls, source: InMemorySource, spec: StreamSpec) -> _InMemoryReader:
        for_samples = getattr(source.augment, "for_samples", None)
        augment = for_samples(source.num_samples) if for_samples else source.augment
        return cls(source, augment, spec.seed, *source.on(spec))

    @property
    def seedless(self) -> InMemorySource | None:
        return None if self.augment else self.source

    def train_batch(self, draws: Tensor) -> Batch:
        inputs, targets = self._select(draws % self.source.num_samples)
        if self.augment:
            inputs = self.augment(inputs, draws, self.seed)
        return Batch(self._normalize(inputs), targets)

    def eval_batch(self, indices: Tensor) -> Batch:
        inputs, targets = self._select(indices)
        return Batch(self._normalize(inputs), targets)

    def _select(self, indices: Tensor) -> Batch:
        return map_tensors(lambda tensor: tensor.index_select(0, indices), Batch(self.inputs, self.targets))

    def _normalize(self, inputs: Tensors) -> Tensors:
        is_image = isinstance(inputs, Tensor) and (inputs.is_floating_point() or inputs.dtype == torch.uint8)
        if self.source.is_normalized_once or not (is_image and self.source.has_pixels):
            return inputs
        if inputs.dtype == torch.uint8:
            inputs = inputs.float() / 255
        return (inputs - self.mean) / self.std


Copies = Callable[[Sequence[Tensor]], list[Tensor]]
"""Copies tensors from the host to a device, also if that is the host."""


def _direct_copies(device: torch.device, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy to a device in the order of its other work."""
    return [tensor.to(device, non_blocking=True, copy=True) for tensor in tensors]


MAX_WAITING_BATCHES = 8
"""The most copied batches that wait in the device's memory. With CUDA graphs, the host can be far ahead of the
device."""


class SideStreamCopies:
    """Copies to a CUDA device on a separate stream, while the device computes.

    The host asks for a batch while the device still computes earlier ones, so the copy is mostly done when the device
    needs it. The work that uses a copy waits for it. The allocator keeps the copy and its pinned memory until the
    stream has used them. So the host waits for the device before it copies more than `MAX_WAITING_BATCHES`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._ends: deque[torch.cuda.Event] = deque()  # of the work on each batch that may still wait

    def __call__(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        computing = torch.cuda.current_stream(self._device)
        self._ends.append(torch.cuda.Event(blocking=True))
        self._ends[-1].record(computing)
        if len(self._ends) > MAX_WAITING_BATCHES:
            self._ends.popleft().synchronize()
        with torch.cuda.stream(self._stream):
            copies = _direct_copies(self._device, tensors)
        computing.wait_stream(self._stream)
        for copy in copies:
            copy.record_stream(computing)
        return copies


def copies_to(device: torch.device) -> Copies:
    """Return the copies to a device that delay its other work least."""
    return SideStreamCopies(device) if device.type == "cuda" else partial(_direct_copies, device)
