"""Data that lives on the device: no DataLoader, no host copies, no synchronisation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from hydrant.batch import Batch
from hydrant.data.base import Order, StreamSpec, shard

Augment = Callable[[Tensor, Tensor, int], Tensor]
"""`(images (B, C, H, W), draws (B,), seed) -> images`: random, but a pure function of `(seed, draw)`.

One that is false, as an object, changes nothing and is not called."""


class DeviceReader(Protocol):
    """Makes batches on the device from the numbers of the samples."""

    def train_batch(self, draws: Tensor) -> Batch: ...

    def eval_batch(self, indices: Tensor) -> Batch: ...


_BUNCH_BYTES = 4 * 2**20  # what is made at once: small batches take as long to ask for as to make
_MOST_UPDATES = 64
_ALIGNMENT = 64  # bytes


@dataclass
class DeviceStream:
    """The training stream over a `DeviceReader`. Small batches of several updates are made at once."""

    reader: DeviceReader
    order: Order
    spec: StreamSpec
    # By position. One is given away once, for it may be written into.
    _made: dict[int, Batch] = field(default_factory=dict[int, Batch], init=False)
    _num_ahead: int = field(default=1, init=False)  # updates that are made at once
    _end: int = field(default=0, init=False)  # what is missing before this update is made again, alone

    def micro_batches(self, num_updates: int) -> Iterator[Batch]:
        for position in self.spec.positions(num_updates):
            if position not in self._made:
                self._make(num_updates, 1 if num_updates < self._end else self._num_ahead)
            yield self._made.pop(position)

    def _make(self, start: int, count: int) -> None:
        size, self._end = self.spec.micro_batch_size, max(self._end, start + count)
        positions = [at for update in range(start, start + count) for at in self.spec.positions(update)]
        adjacent = len(positions) if self.spec.world_size == 1 else 1  # else other ranks' draws lie between
        draws = [self.order.draws(at, adjacent * size) for at in positions[::adjacent]]
        whole = self.reader.train_batch(torch.cat(draws))
        # `unsafe`, for they may be written into: autograd allows that for no part of what it knows to be split.
        parts = (torch.unsafe_split(tensor, size) for tensor in whole)
        made = list(itertools.starmap(Batch, zip(*parts, strict=True)))
        self._made |= zip(positions, made, strict=True)
        # A batch that lies elsewhere than in a resumed run is to be aligned as it is there: kernels are chosen by it.
        is_aligned = made[0].inputs.nbytes % _ALIGNMENT == 0
        most = _BUNCH_BYTES * count // max(whole.inputs.nbytes, 1) if is_aligned else 1
        self._num_ahead = min(max(most, 1), _MOST_UPDATES)

    def close(self) -> None:
        """Nothing runs beside the loop."""


def device_batches(
    reader: DeviceReader, num_samples: int, spec: StreamSpec, batch_size: int
) -> Iterator[Batch]:
    """One pass of this rank over a `DeviceReader`."""
    for part in shard(num_samples, batch_size, spec.rank, spec.world_size):
        yield reader.eval_batch(torch.arange(part.start, part.stop, device=spec.device))


@dataclass(frozen=True)
class ResidentSource:
    """Samples held in two tensors, moved to the device once.

    `inputs` (N, *input_shape) may be uint8: it is scaled to 0..1 and normalised when a batch is read, and so are floats
    that are augmented. `mean` and `std` are per channel, in units of the scaled pixel.
    """

    inputs: Tensor
    targets: Tensor
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    augment: Augment | None = None
    _on_device: dict[torch.device, tuple[Tensor, ...]] = field(
        default_factory=dict[torch.device, tuple[Tensor, ...]], init=False, repr=False, compare=False
    )

    @property
    def num_samples(self) -> int:
        return len(self.inputs)

    def stream(self, spec: StreamSpec) -> DeviceStream:
        order = Order(spec.seed, self.num_samples, spec.device)
        return DeviceStream(_ResidentReader.load(self, spec), order, spec)

    def batches(self, spec: StreamSpec, batch_size: int) -> Iterable[Batch]:
        return device_batches(_ResidentReader.load(self, spec), self.num_samples, spec, batch_size)

    def first(self, num_samples: int) -> ResidentSource:
        return replace(self, inputs=self.inputs[:num_samples], targets=self.targets[:num_samples])

    @property
    def is_normalised_once(self) -> bool:
        """Whether what `on` gives is normalised: floats to which nothing else happens, for it makes bytes larger."""
        return self.inputs.is_floating_point() and not self.augment

    def on(self, device: torch.device) -> tuple[Tensor, ...]:
        """`inputs`, `targets`, `mean` and `std` on the device; they stay there for the next pass."""
        if device not in self._on_device:
            channels_first = (-1, *(1 for _ in self.inputs.shape[2:]))
            normal = (torch.tensor(v).view(channels_first) for v in (self.mean, self.std))
            inputs, targets, mean, std = (t.to(device) for t in (self.inputs, self.targets, *normal))
            if self.is_normalised_once:
                inputs = (inputs - mean) / std
            self._on_device[device] = inputs, targets, mean, std
        return self._on_device[device]


@dataclass(frozen=True)
class _ResidentReader:
    inputs: Tensor
    targets: Tensor
    mean: Tensor
    std: Tensor
    is_normalised: bool
    augment: Augment | None
    seed: int

    @classmethod
    def load(cls, source: ResidentSource, spec: StreamSpec) -> _ResidentReader:
        inputs, targets, mean, std = source.on(spec.device)
        return cls(inputs, targets, mean, std, source.is_normalised_once, source.augment, spec.seed)

    def train_batch(self, draws: Tensor) -> Batch:
        indices = draws % len(self.inputs)
        inputs = self.inputs.index_select(0, indices)
        if self.augment:
            inputs = self.augment(inputs, draws, self.seed)
        return Batch(self._normalise(inputs), self.targets.index_select(0, indices))

    def eval_batch(self, indices: Tensor) -> Batch:
        inputs = self._normalise(self.inputs.index_select(0, indices))
        return Batch(inputs, self.targets.index_select(0, indices))

    def _normalise(self, inputs: Tensor) -> Tensor:
        if self.is_normalised:
            return inputs
        if inputs.dtype == torch.uint8:
            inputs = inputs.float() / 255
        return (inputs - self.mean) / self.std
