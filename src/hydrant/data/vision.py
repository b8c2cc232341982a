"""MNIST and CIFAR: read once by torchvision, then kept on the device.

The published test images are the validation set. With a `val_ratio`, the validation set is that ratio of each class of
the published training images, and the published test images are the test set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hydrant.data.archive import Archive
from hydrant.data.base import Data, check_normalization, check_shapes
from hydrant.data.in_memory import Augment, InMemorySource, tensor_reader
from hydrant.data.labels import labels_of
from hydrant.data.stratified import cut_part
from hydrant.errors import DataError


def mnist(
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
    """Return MNIST (LeCun, Cortes & Burges, 1998): 60,000 + 10,000 digits of 28 x 28 pixels, from `root/MNIST/raw`.

    Pixels in 0..1 are normalized by `mean` and `std`; those of all training pixels are 0.1307 and 0.3081 (as in
    pytorch/examples, mnist).
    """
    from torchvision.datasets import MNIST
    from torchvision.datasets.mnist import read_image_file, read_label_file

    folder = Path(root, "MNIST", "raw")
    names = [Path(name).stem for name, _ in MNIST.resources]
    checks = {folder / name: read_image_file if "images" in name else read_label_file for name in names}
    archive = Archive("MNIST", Path(root), MNIST, checks)
    data = _build(archive, download, augment, lambda part: part.data.unsqueeze(1), mean, std)
    data = replace(data, class_names=tuple(map(str, range(10))))
    return _cut_val(check_shapes(data, input_shape, num_classes), val_ratio, split_seed)


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
    data = _build(archive, download, augment, _channels_first, mean, std)
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
    data = _build(archive, download, augment, _channels_first, mean, std)
    return _cut_val(check_shapes(data, input_shape, num_classes), val_ratio, split_seed)


def _cifar_archive(name: str, root: Path, dataset: Any) -> Archive:
    from torchvision.datasets.utils import calculate_md5

    files = [*dataset.train_list, *dataset.test_list, (dataset.meta["filename"], dataset.meta["md5"])]
    md5s = {root / dataset.base_folder / file: md5 for file, md5 in files}

    def check(path: Path) -> None:
        if calculate_md5(path) != md5s[path]:
            raise ValueError("its MD5 sum differs from the published one")

    return Archive(name, root, dataset, dict.fromkeys(md5s, check))


def _channels_first(part: Any) -> Tensor:
    return torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous()


def _build(
    archive: Archive,
    download: bool,
    augment: Augment | None,
    images_of: Callable[[Any], Tensor],
    mean: Sequence[float],
    std: Sequence[float],
) -> Data:
    """Return the data with both parts in memory. `images_of` returns the images of a part, uint8 (N, C, H, W)."""
    train, val = archive.read(download)
    num_classes = len(train.classes)

    def source(part: Any, augment: Augment | None) -> InMemorySource:
        images, targets = images_of(part), torch.as_tensor(part.targets)
        if len(targets) != len(images) or int(targets.max()) >= num_classes:
            message = "the labels do not fit the images; replace the files"
            raise DataError(f"{archive.name} in {archive.folder}: {message}")
        return InMemorySource(images, targets, mean, std, augment)

    shape = tuple(images_of(train).shape[1:])
    check_normalization(mean, std, shape[0])
    return Data(
        source(train, augment),
        source(val, None),
        shape,
        num_classes,
        reader=tensor_reader(mean, std),
        class_names=tuple(train.classes),
    )


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
