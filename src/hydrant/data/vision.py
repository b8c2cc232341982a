"""MNIST, the data sets in its format, and CIFAR: read once, then kept on the device.

The published test images are the validation set. With a `val_ratio`, the validation set is that ratio of each class of
the published training images, and the published test images are the test set.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hydrant.data.archive import Archive, Images, Samples
from hydrant.data.base import Data, Indices, check_normalization, check_shapes
from hydrant.data.idx import IdxImages
from hydrant.data.in_memory import Augment, InMemorySource, tensor_reader
from hydrant.data.labels import labels_of
from hydrant.data.stratified import cut_part
from hydrant.errors import DataError

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
    std: Sequence[float] | None,
    augment: Augment | None,
) -> Data:
    """Return MNIST (LeCun, Cortes & Burges, 1998) or a data set in its format: gray images of 28 x 28 pixels.

    The files, plain or `.gz`, are in `root` or in the folder below it where torchvision puts them. Pixels in 0..1 are
    normalized by `mean` and `std`; None: those of the pixels that train.
    """
    archive = IdxImages(variant, Path(root)).archive()
    read = archive.read(download)

    def data_with(measured: Mapping[str, Sequence[float]]) -> Data:
        data = _build(archive, read, augment, mean or measured["mean"], std or measured["std"])
        data = replace(data, statistics=measured, with_statistics=data_with if measured else None)
        return _cut_val(check_shapes(data, input_shape, num_classes), val_ratio, split_seed)

    if mean is not None and std is not None:
        return data_with({})

    def measured_on(images: Tensor) -> Data:
        return data_with(dict(zip(("mean", "std"), map(list, statistics(images)), strict=True)))

    train = data_with({"mean": [0.0], "std": [1.0]}).train
    assert isinstance(train, InMemorySource) and isinstance(train.inputs, Tensor)
    images = train.inputs  # without the validation part

    def measured_on_part(part: Indices) -> Data:
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
    std: Sequence[float],
    augment: Augment | None,
) -> Data:
    """Return CIFAR-10 (Krizhevsky, 2009): 50,000 + 10,000 images of 32 x 32 pixels, from `root/cifar-10-batches-py`.

    Pixels in 0..1 are normalized per channel by `mean` and `std`. (The often copied `std` 0.2023, 0.1994, 0.2010 is the
    mean of the standard deviations of single images.)
    """
    from torchvision.datasets import CIFAR10

    archive = _cifar_archive("CIFAR-10", Path(root), CIFAR10)
    data = _build(archive, archive.read(download), augment, mean, std)
    return _cut_val(check_shapes(data, input_shape, num_classes), val_ratio, split_seed)


def cifar100(
    *,
    root: str,
    input_shape: Sequence[int],
    num_classes: int,
    download: bool,
    val_ratio: float,
    split_seed: int,
    mean: Sequence[float],
    std: Sequence[float],
    augment: Augment | None,
) -> Data:
    """Return CIFAR-100 (Krizhevsky, 2009) with its 100 fine labels, from `root/cifar-100-python`.

    Pixels in 0..1 are normalized per channel by `mean` and `std`.
    """
    from torchvision.datasets import CIFAR100

    archive = _cifar_archive("CIFAR-100", Path(root), CIFAR100)
    data = _build(archive, archive.read(download), augment, mean, std)
    return _cut_val(check_shapes(data, input_shape, num_classes), val_ratio, split_seed)


def _cifar_archive(name: str, root: Path, dataset: Any) -> Archive:
    from torchvision.datasets.utils import calculate_md5

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
    return Archive(name, root, dict.fromkeys(md5s, check), read, fetch, dataset.base_folder, is_published)


def _channels_first(part: Any) -> Samples:
    images = torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous()
    return images, torch.as_tensor(part.targets)


def _build(
    archive: Archive, read: Images, augment: Augment | None, mean: Sequence[float], std: Sequence[float]
) -> Data:
    """Return the data with both parts in memory."""
    num_classes = len(read.class_names)
    check_normalization(mean, std, read.train[0].shape[1])

    def source(samples: Samples, augment: Augment | None) -> InMemorySource:
        images, targets = samples
        if len(targets) != len(images) or not (targets.min() >= 0 and targets.max() < num_classes):
            message = "the labels do not fit the images; replace the files"
            raise DataError(f"{archive.name} in {archive.folder}: {message}")
        return InMemorySource(images, targets, mean, std, augment)

    return Data(
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
    std = ((levels - mean.unsqueeze(1)) ** 2 * weights).sum(1).sqrt()
    return tuple(mean.tolist()), tuple(std.tolist())


def _cut_val(data: Data, val_ratio: float, split_seed: int) -> Data:
    """Return data whose validation set is this ratio of each class of the training set, and whose test set is `val`.

    With a ratio of 0, return the data unchanged.
    """
    if val_ratio == 0:
        return data
    labels = labels_of(data.train)
    assert labels is not None
    train, val = cut_part(labels, val_ratio, split_seed, "data.val_ratio")
    return replace(data, train=data.train.subset(train), val=data.train.subset(val), test=data.val)
