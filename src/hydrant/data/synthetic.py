"""Noise images made on the device: a data set of any shape and size without reading time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hydrant import seeding
from hydrant.batch import Batch
from hydrant.data.base import Data, SampleOrder, StreamSpec
from hydrant.data.in_memory import DeviceStream, device_batches
from hydrant.errors import ConfigError

_NUM_OFFSETS = 1 << 16


def synthetic(
    *,
    input_shape: tuple[int, ...] = (3, 224, 224),
    num_classes: int = 1000,
    num_samples: int = 1_000_000,
    num_val_samples: int = 1000,
) -> Data:
    """Return standard normal images with random labels, for benchmarks and tests. There is nothing to learn."""
    shape = tuple(input_shape)
    if not shape or min(shape) < 1:
        raise ConfigError("data.input_shape", f"{list(shape)} has a side below 1")
    counts = {"num_classes": num_classes, "num_samples": num_samples, "num_val_samples": num_val_samples}
    for key, value in counts.items():
        if value < 1:
            raise ConfigError(f"data.{key}", f"{value} is below 1")
    train = SyntheticSource(num_samples, shape, num_classes, offset=0)
    return Data(train, replace(train, num_samples=num_val_samples, offset=num_samples), shape, num_classes)


@dataclass(frozen=True)
class SyntheticSource:
    """Sample `i` is a window into one block of noise. Its offset and its label are hashes of `i`."""

    num_samples: int
    input_shape: tuple[int, ...]
    num_classes: int
    offset: int

    def stream(self, spec: StreamSpec) -> DeviceStream:
        order = SampleOrder(spec.seed, self.num_samples, spec.device)
        return DeviceStream(_SyntheticReader.load(self, spec), order, spec)

    def batches(self, spec: StreamSpec, batch_size: int) -> Iterable[Batch]:
        return device_batches(_SyntheticReader.load(self, spec), self.num_samples, spec, batch_size)

    def first(self, num_samples: int) -> SyntheticSource:
        return replace(self, num_samples=min(num_samples, self.num_samples))


@dataclass(frozen=True)
class _SyntheticReader:
    source: SyntheticSource
    windows: Tensor  # (_NUM_OFFSETS, C * H * W): a view, one row per offset into the block of noise

    @classmethod
    def load(cls, source: SyntheticSource, spec: StreamSpec) -> _SyntheticReader:
        size = math.prod(source.input_shape)
        generator = torch.Generator().manual_seed(seeding.SYNTHETIC)
        noise = torch.randn(size + _NUM_OFFSETS - 1, generator=generator).to(spec.device)
        return cls(source, noise.unfold(0, size, 1))

    def train_batch(self, draws: Tensor) -> Batch:
        return self.eval_batch(draws % self.source.num_samples)

    def eval_batch(self, indices: Tensor) -> Batch:
        samples = indices + self.source.offset
        rows = (seeding.uniform(seeding.SYNTHETIC, samples, 0) * _NUM_OFFSETS).long()
        targets = (seeding.uniform(seeding.SYNTHETIC, samples, 1) * self.source.num_classes).long()
        return Batch(self.windows[rows].view(-1, *self.source.input_shape), targets)
