"""Noise images made on the device: a data set of any shape and size without reading time."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hydrant import seeding
from hydrant.batch import Batch
from hydrant.checks import check_number
from hydrant.data.base import Data, Indices, SampleOrder, StreamSpec, select
from hydrant.data.in_memory import DeviceStream, device_batches, tensor_reader
from hydrant.errors import ConfigError

_NUM_OFFSETS = 1 << 16


def synthetic(
    *,
    input_shape: tuple[int, ...] = (3, 224, 224),
    num_classes: int = 1000,
    num_samples: int = 1_000_000,
    num_val_samples: int = 1000,
) -> Data:
    """Return standard normal images with random labels, for benchmarks and tests. There is nothing to learn.

    Raises:
        ConfigError: a number is below 1.
    """
    shape = tuple(input_shape)
    if not shape or min(shape) < 1:
        raise ConfigError("data.input_shape", f"{list(shape)} has a dimension below 1")
    counts = {"num_classes": num_classes, "num_samples": num_samples, "num_val_samples": num_val_samples}
    for key, value in counts.items():
        check_number(f"data.{key}", value, least=1)
    train = SyntheticSource(range(num_samples), shape, num_classes)
    val = replace(train, samples=range(num_samples, num_samples + num_val_samples))
    return Data(train, val, shape, num_classes, reader=tensor_reader())


@dataclass(frozen=True)
class SyntheticSource:
    """Sample `i` is a window into one block of noise. Its offset and its label are hashes of `i`."""

    samples: Indices
    input_shape: tuple[int, ...]
    num_classes: int

    @property
    def num_samples(self) -> int:
        return len(self.samples)

    def stream(self, spec: StreamSpec) -> DeviceStream:
        order = SampleOrder(spec.seed, self.num_samples, spec.device)
        return DeviceStream(_SyntheticReader.load(self, spec), order, spec)

    def batches(self, spec: StreamSpec, batch_size: int) -> Iterable[Batch]:
        return device_batches(_SyntheticReader.load(self, spec), self.num_samples, spec, batch_size)

    def subset(self, indices: Indices) -> SyntheticSource:
        return replace(self, samples=select(self.samples, indices))


@dataclass(frozen=True)
class _SyntheticReader:
    source: SyntheticSource
    windows: Tensor  # (_NUM_OFFSETS, C * H * W): a view, one row per offset into the block of noise
    samples: range | Tensor

    @classmethod
    def load(cls, source: SyntheticSource, spec: StreamSpec) -> _SyntheticReader:
        size = math.prod(source.input_shape)
        generator = torch.Generator().manual_seed(seeding.SYNTHETIC)
        noise = torch.randn(size + _NUM_OFFSETS - 1, generator=generator).to(spec.device)
        samples = source.samples
        chosen = samples if isinstance(samples, range) else torch.from_numpy(samples).to(spec.device)
        return cls(source, noise.unfold(0, size, 1), chosen)

    @property
    def seedless(self) -> SyntheticSource:
        return self.source

    def train_batch(self, draws: Tensor) -> Batch:
        return self.eval_batch(draws % self.source.num_samples)

    def eval_batch(self, indices: Tensor) -> Batch:
        chosen = self.samples
        is_range = isinstance(chosen, range)
        samples = indices * chosen.step + chosen.start if is_range else chosen[indices]
        rows = (seeding.uniform(seeding.SYNTHETIC, samples, 0) * _NUM_OFFSETS).long()
        targets = (seeding.uniform(seeding.SYNTHETIC, samples, 1) * self.source.num_classes).long()
        return Batch(self.windows[rows].view(-1, *self.source.input_shape), targets)
