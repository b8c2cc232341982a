"""Images that are kept on the device: the digits of scikit-learn, MNIST and its like, CIFAR, and noise."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hydrant import seeding
from hydrant.batch import Batch
from hydrant.data import base
from hydrant.data.archive import Archive, Images, Samples, idx_archive
from hydrant.data.in_memory import Augment, DeviceStream, InMemorySource, device_batches, tensor_reader
from hydrant.data.stratified import cut_part, cut_val_and_test
from hydrant.errors import DataError
from hydrant.files.plain_values import Positive, PositiveInt


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
        return device_batches(_SyntheticReader.load(self, spec), self.num_samples, spec, batch_size)

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


Variant = Literal[
    "mnist", "fashion_mnist", "kmnist", "emnist_balanced", "emnist_bymerge", "emnist_byclass", "emnist_letters",
    "emnist_digits", "emnist_mnist",
]  # fmt: skip


def mnist(
    *,
    variant: Variant,
    root: str,
    input_shape: Sequence[int],
    num_classes: int,
    download: bool,
    val_ratio: float,
    split_seed: int,
    mean: Sequence[float] | None,
    std: Sequence[Positive] | None,
    augment: Augment | None,
) -> base.Data:
    """Return MNIST (LeCun, Cortes & Burges, 1998) or a data set in its format: gray images of 28 x 28 pixels.

    The files, plain or `.gz`, are in `root` or in the folder below it where torchvision puts them. Pixels in 0..1 are
    normalized by `mean` and `std`; None: those of the pixels that train.
    """
    archive = idx_archive(variant, Path(root))
    read = archive.read(download)

    def data_with(measured: Mapping[str, Sequence[float]]) -> base.Data:
        data = _build(archive, read, augment, mean or measured["mean"], std or measured["std"])
        data = replace(data, statistics=measured, with_statistics=data_with if measured else None)
        return _cut_val(base.check_shapes(data, input_shape, num_classes), val_ratio, split_seed)

    if mean is not None and std is not None:
        return data_with({})

    def measured_on(images: Tensor) -> base.Data:
        return data_with(dict(zip(("mean", "std"), map(list, statistics(images)), strict=True)))

    train = data_with({"mean": [0.0], "std": [1.0]}).train
    assert isinstance(train, InMemorySource) and isinstance(train.inputs, Tensor)
    images = train.inputs  # without the validation part

    def measured_on_part(part: base.Indices) -> base.Data:
        return measured_on(images[torch.as_tensor(part)])

    return replace(measured_on(images), with_statistics_of=measured_on_part)


def cifar10(
    *,
    root: str,
    input_shape: Sequence[int],
    num_classes: int,
    download: bool,
    val_ratio: float,
    split_seed: int,
    mean: Sequence[float],
    std: Sequence[Positive],
    augment: Augment | None,
) -> base.Data:
    """Return CIFAR-10 (Krizhevsky, 2009): 50,000 + 10,000 images of 32 x 32 pixels, from `root/cifar-10-batches-py`.

    Pixels in 0..1 are normalized per channel by `mean` and `std`. (The often copied `std` 0.2023, 0.1994, 0.2010 is the
    mean of the standard deviations of single images.)
    """
    archive = _cifar_archive("CIFAR-10", Path(root))
    data = _build(archive, archive.read(download), augment, mean, std)
    return _cut_val(base.check_shapes(data, input_shape, num_classes), val_ratio, split_seed)


def cifar100(
    *,
    root: str,
    input_shape: Sequence[int],
    num_classes: int,
    download: bool,
    val_ratio: float,
    split_seed: int,
    mean: Sequence[float],
    std: Sequence[Positive],
    augment: Augment | None,
) -> base.Data:
    """Return CIFAR-100 (Krizhevsky, 2009) with its 100 fine labels, from `root/cifar-100-python`.

    Pixels in 0..1 are normalized per channel by `mean` and `std`.
    """
    archive = _cifar_archive("CIFAR-100", Path(root))
    data = _build(archive, archive.read(download), augment, mean, std)
    return _cut_val(base.check_shapes(data, input_shape, num_classes), val_ratio, split_seed)


def _cifar_archive(name: str, root: Path) -> Archive:
    import torchvision.datasets
    from torchvision.datasets.utils import calculate_md5

    dataset: Any = getattr(torchvision.datasets, name.replace("-", ""))
    files = [*dataset.train_list, *dataset.test_list, (dataset.meta["filename"], dataset.meta["md5"])]
    md5s = {root / dataset.base_folder / file: md5 for file, md5 in files}

    def is_published(path: Path) -> bool:
        return calculate_md5(path) == md5s[path]

    def check(path: Path) -> None:
        if not is_published(path):
            raise ValueError("its MD5 sum differs from the published one")

    def read() -> Images:
        with warnings.catch_warnings():
            # CIFAR was pickled in 2009, with a dtype format that NumPy 2.4.0 to 2.4.4 deprecates.
            warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
            train, val = (dataset(root, train=is_train) for is_train in (True, False))
        return Images(_channels_first(train), _channels_first(val), tuple(train.classes))

    fetch = partial(dataset, download=True)
    return Archive(name, root, list(md5s), check, read, fetch, dataset.base_folder, is_published)


def _channels_first(part: Any) -> Samples:
    return torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous(), torch.as_tensor(part.targets)


def _build(
    archive: Archive, read: Images, augment: Augment | None, mean: Sequence[float], std: Sequence[float]
) -> base.Data:
    """Return the data with both parts in memory."""
    num_classes = len(read.class_names)
    base.check_normalization(mean, std, read.train[0].shape[1])

    def source(samples: Samples, augment: Augment | None) -> InMemorySource:
        images, targets = samples
        if len(targets) != len(images) or not (targets.min() >= 0 and targets.max() < num_classes):
            message = "the labels do not fit the images; replace the files"
            raise DataError(f"{archive.name} in {archive.folder}: {message}")
        return InMemorySource(images, targets, mean, std, augment)

    return base.Data(
        source(read.train, augment),
        source(read.val, None),
        tuple(read.train[0].shape[1:]),
        num_classes,
        reader=tensor_reader(mean, std),
        class_names=read.class_names,
    )


def statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the standard deviation of each channel of images, uint8 (N, C, H, W), in 0..1.

    >>> statistics(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1))
    ((0.5,), (0.5,))
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    counts = torch.stack([channel.flatten().bincount(minlength=256) for channel in images.unbind(1)]).double()
    weights = counts / counts.sum(1, keepdim=True)
    mean = weights @ levels
    return tuple(mean.tolist()), tuple(((levels - mean.unsqueeze(1)) ** 2 * weights).sum(1).sqrt().tolist())


def _cut_val(data: base.Data, val_ratio: float, split_seed: int) -> base.Data:
    """Return data whose validation set is this ratio of each class of the training set, and whose test set is `val`.

    With a ratio of 0, return the data unchanged.
    """
    if val_ratio == 0:
        return data
    labels = base.labels_of(data.train)
    assert labels is not None
    train, val = cut_part(labels, val_ratio, split_seed, "data.val_ratio")
    return replace(data, train=data.train.subset(train), val=data.train.subset(val), test=data.val)
