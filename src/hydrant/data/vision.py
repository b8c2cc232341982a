"""Images that are kept on the device: the digits of scikit-learn, their random augmentation, and noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hydrant import seeding
from hydrant.batch import Batch
from hydrant.data import base
from hydrant.data.in_memory import Augment, DeviceStream, InMemorySource, device_batches, tensor_reader
from hydrant.data.splits import cut_val_and_test
from hydrant.files.plain_values import NotNegativeInt, Positive, PositiveInt


def digits(
    *,
    input_shape: Sequence[int] = (1, 8, 8),
    num_classes: int = 10,
    val_ratio: float = 0.2,
    test_ratio: float = 0.0,
    split_seed: int = 0,
    mean: Sequence[float] = (0.3053,),
    std: Sequence[Positive] = (0.3760,),
    augment: Augment | None = None,
) -> base.Data:
    """Return "Optical recognition of handwritten digits" (Alpaydin & Kaynak, UCI, 1998), as in `sklearn.datasets`.

    The validation set has the ratio `val_ratio` of each class, and the test set the ratio `test_ratio`. Which samples
    these are depends only on `split_seed`, so that replicates with other seeds are evaluated on the same samples.
    Pixels are scaled from 0..16 to 0..1, and then normalized by `mean` and `std`.
    """
    base.check_normalization(mean, std, num_channels=1)
    table = _table()
    inputs, targets = table[:, :-1].float().view(-1, 1, 8, 8) / 16, table[:, -1]
    train, val, test = cut_val_and_test(targets.numpy(), val_ratio, test_ratio, split_seed)

    def part(indices: np.ndarray, augment: Augment | None) -> InMemorySource:
        chosen = torch.from_numpy(indices)
        return InMemorySource(inputs[chosen], targets[chosen], mean, std, augment)

    data = base.Data(
        part(train, augment),
        part(val, None),
        (1, 8, 8),
        10,
        test=part(test, None) if len(test) else None,
        reader=tensor_reader(mean, std),
        class_names=tuple(map(str, range(10))),
    )
    return base.check_shapes(data, input_shape, num_classes)


def _table() -> Tensor:
    """Return 64 pixels and the class of each image, (1797, 65)."""
    package = find_spec("sklearn")
    assert package is not None and package.origin is not None  # a dependency of Hydrant
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    return torch.from_numpy(np.loadtxt(file, delimiter=",", dtype=np.int64))


@dataclass(frozen=True)
class ShiftFlip:
    """Shift by up to `max_shift` pixels in each direction, fill with zeros, and mirror half the images if `flip`.

    This equals padding by `max_shift`, `RandomCrop` and `RandomHorizontalFlip`: the usual augmentation of CIFAR
    (He et al., 2016, section 4.2, with `max_shift=4`).
    """

    max_shift: NotNegativeInt = 0
    flip: bool = False

    def __bool__(self) -> bool:
        return bool(self.max_shift or self.flip)

    def __call__(self, images: Tensor, draws: Tensor, seed: int) -> Tensor:
        """Return the augmented images, same shape and dtype.

        Args:
            images: (B, C, H, W).
            draws: (B,) int64, see `hydrant.data.base`; with `seed` they determine the random numbers.
        """
        if self.max_shift:
            padded = torch.nn.functional.pad(images, [self.max_shift] * 4)
            images = shifted(padded, self.max_shift, draws, seed)
        if self.flip:
            is_flipped = (seeding.uniform(seed, draws, 2) < 0.5).view(-1, 1, 1, 1)
            images = torch.where(is_flipped, images.flip(-1), images)
        return images


def shifted(padded: Tensor, max_shift: int, draws: Tensor, seed: int) -> Tensor:
    """Return a window of each padded image, (B, C, H, W), at a random place."""
    span = 2 * max_shift + 1
    rows, columns = ((seeding.uniform(seed, draws, lane) * span).long() for lane in (0, 1))
    height, width = (side - 2 * max_shift for side in padded.shape[-2:])
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (B, C, span, span, H, W), a view
    return windows[torch.arange(len(padded), device=padded.device), :, rows, columns]


_NUM_OFFSETS = 1 << 16


def synthetic(
    *,
    input_shape: tuple[PositiveInt, ...] = (3, 224, 224),
    num_classes: PositiveInt = 1000,
    num_samples: PositiveInt = 1_000_000,
    num_val_samples: PositiveInt = 1000,
) -> base.Data:
    """Return standard normal images with random labels, for benchmarks and tests. There is nothing to learn."""
    shape = tuple(input_shape)
    train = SyntheticSource(range(num_samples), shape, num_classes)
    val = replace(train, samples=range(num_samples, num_samples + num_val_samples))
    return base.Data(train, val, shape, num_classes, reader=tensor_reader())


@dataclass(frozen=True)
class SyntheticSource:
    """Sample `i` is a window into one block of noise. Its offset and its label are hashes of `i`."""

    samples: base.Indices
    input_shape: tuple[int, ...]
    num_classes: int

    @property
    def num_samples(self) -> int:
        return len(self.samples)

    def stream(self, spec: base.StreamSpec) -> DeviceStream:
        order = base.SampleOrder(spec.seed, self.num_samples, spec.device)
        return DeviceStream(_SyntheticReader.load(self, spec), order, spec)

    def batches(self, spec: base.StreamSpec, batch_size: int) -> Iterable[Batch]:
        reader = _SyntheticReader.load(self, spec)
        return device_batches(reader.eval_batch, self.num_samples, spec, batch_size)

    def subset(self, indices: base.Indices) -> SyntheticSource:
        return replace(self, samples=base.select(self.samples, indices))


@dataclass(frozen=True)
class _SyntheticReader:
    source: SyntheticSource
    windows: Tensor  # (_NUM_OFFSETS, C * H * W): a view, one row per offset into the block of noise
    samples: range | Tensor

    @classmethod
    def load(cls, source: SyntheticSource, spec: base.StreamSpec) -> _SyntheticReader:
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
        samples = indices * chosen.step + chosen.start if isinstance(chosen, range) else chosen[indices]
        rows = (seeding.uniform(seeding.SYNTHETIC, samples, 0) * _NUM_OFFSETS).long()
        targets = (seeding.uniform(seeding.SYNTHETIC, samples, 1) * self.source.num_classes).long()
        return Batch(self.windows[rows].view(-1, *self.source.input_shape), targets)
