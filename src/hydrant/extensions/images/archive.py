"""Published images that are kept on the device: MNIST and its like, and CIFAR.

Their files are read, missing ones are downloaded, and damaged ones are named. Those of MNIST are IDX files, plain or
compressed by gzip.
"""

import gzip
import hashlib
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from hydrant.data import base
from hydrant.data.in_memory import Augment, InMemorySource, tensor_reader
from hydrant.data.splits import cut_part
from hydrant.errors import ConfigError, DataError, HydrantError, log
from hydrant.files.on_disk import locked
from hydrant.files.plain_values import Positive, RatioBelowOne
from hydrant.files.read_file import load_config

Samples = tuple[Tensor, Tensor]
"""Images, uint8 (N, C, H, W), and their classes, int64 (N,)."""


@dataclass(frozen=True)
class Images:
    """The content of a data set: the samples to train on and to validate on, and the names of their classes."""

    train: Samples
    val: Samples
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class Archive:
    """The files of a data set under `root`.

    A download never writes over a file: it adds the missing ones to those that are as they were published.

    Args:
        name: of the data set.
        files: may be missing.
        check: raises if a file is damaged.
        open: reads the files.
        fetch: downloads files of these names into an empty folder, or below it.
        holds: what `root` has to hold, for messages.
        is_published: whether a file equals the published file.
    """

    name: str
    root: Path
    files: Sequence[Path]
    check: Callable[[Path], object]
    open: Callable[[], Images]
    fetch: Callable[[str], object]
    holds: str
    is_published: Callable[[Path], bool]

    @property
    def folder(self) -> Path:
        return self.files[0].parent

    @property
    def _missing(self) -> list[Path]:
        return [path for path in self.files if not path.is_file()]

    def read(self, download: bool) -> Images:
        """Return the content of the files. With `download`, missing ones are downloaded before."""
        try:
            if download and self._missing:
                self._download()
            return self.open()
        except HydrantError:
            raise
        except Exception as error:  # torchvision raises anything for a damaged file or a failed download
            raise self._explain(error, download) from error

    def _download(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        lock = locked(self.root / ".download.lock")  # ranks and jobs share the data folder
        with lock, TemporaryDirectory(prefix=".download-", dir=self.root) as folder:
            if not self._missing:  # another process has downloaded them
                return
            changed = [p.name for p in self.files if p.is_file() and not self.is_published(p)]
            if changed:
                names = ", ".join(changed)
                raise RuntimeError(f"nothing is downloaded beside {names}, because that is not as published")
            self.fetch(folder)
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in self._missing:
                if not os.path.lexists(path):
                    next(Path(folder).rglob(path.name)).rename(path)

    def _explain(self, error: Exception, download: bool) -> HydrantError:
        reason = " ".join(str(error).split())
        missing = ", ".join(path.name for path in self._missing)
        not_found = f"{self.name} is not in {self.folder.absolute()} (missing: {missing})"
        remedy = f"set data.root to the folder that holds {self.holds}"
        if missing and download:
            message = f"{not_found} and its download failed: {reason}"
            return ConfigError("data.download", message, remedy=f"Copy the files there, or {remedy}")
        if missing:
            return ConfigError("data.root", not_found, remedy=f"{remedy}, or data.download=true")
        damaged = ", ".join(str(path) for path in self.files if self._is_damaged(path))
        message = f"{damaged or f'{self.name} in {self.folder}'} cannot be read ({reason})"
        return DataError(message, remedy="delete it and run again with data.download=true")

    def _is_damaged(self, path: Path) -> bool:
        try:
            self.check(path)
        except Exception:  # as above
            return True
        return False


_BYTES = 8  # the code of the type of the elements in the header
_PACKAGED = {"fashion_mnist": (Path("/usr/share/datasets/fashion-mnist"),)}
"""Where the packages of distributions have the files: Debian's dataset-fashion-mnist."""


@cache
def idx_tables() -> Mapping[str, Any]:
    """Return the tables of archive.yaml, which describes them."""
    return load_config(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def idx_archive(variant: str, root: Path) -> Archive:
    """Return how to read the files of a published data set, and to download missing ones.

    Args:
        variant: a key of `classes` in archive.yaml.
        root: its files are there, below it where torchvision puts them, or, if neither has one, where a package of the
            distribution has them.
    """
    import torchvision.datasets

    name = next((name for name, key in idx_tables()["options"].items() if key == variant), "EMNIST")
    split = variant.partition("emnist_")[2] if name == "EMNIST" else None
    start, prefixes = ("", ("train", "t10k")) if split is None else (f"emnist-{split}-", ("train", "test"))
    kinds = "images-idx3-ubyte", "labels-idx1-ubyte"
    stems = [f"{start}{prefix}-{kind}" for prefix in prefixes for kind in kinds]
    folders = [root, root / name / "raw", *_PACKAGED.get(variant, ())]
    choices = [[_plain_or_zipped(folder / stem) for stem in stems] for folder in folders]
    files = next((files for files in choices if any(map(Path.is_file, files))), choices[1])
    dataset: Any = getattr(torchvision.datasets, name)
    fetch = partial(dataset, download=True, **({} if split is None else {"split": split}))

    def read() -> Images:
        if root not in files[0].parents:
            log.info("%s is read from %s, because data.root has no file of it", name, files[0].parent)
        tensors = [read_idx(file) for file in files]
        if split is None:  # else their names tell what they are
            _check_sums(files, name)
        images = [images if split is None else images.transpose(1, 2) for images in tensors[::2]]
        images = [images.unsqueeze(1).contiguous() for images in images]
        labels = [labels.long() - int(split == "letters") for labels in tensors[1::2]]
        train, val = zip(images, labels, strict=True)
        return Images(train, val, tuple(idx_tables()["classes"][variant]))

    def is_published(file: Path) -> bool:
        return _published_as(file) == name

    return Archive(name, root, files, read_idx, read, fetch, f"these files or {name}/raw", is_published)


def _check_sums(files: Sequence[Path], name: str) -> None:
    """Check by their MD5 sums that files are those of a data set, and warn if they are not published ones.

    Raises:
        ConfigError: they are those of another data set.
    """
    for file in files:
        published = _published_as(file)
        if published not in (None, name):
            message = f"{file} is a file of {published} by its MD5 sum, not of {name}"
            raise ConfigError("data", message, remedy=f"write data={idx_tables()['options'][published]}")
        if published is None:
            log.warning("%s is not the published file of %s: its MD5 sum differs", file, name)


def _plain_or_zipped(file: Path) -> Path:
    zipped = file.with_name(f"{file.name}.gz")
    return zipped if zipped.is_file() and not file.is_file() else file


def _content(file: Path) -> bytes:
    content = file.read_bytes()
    return gzip.decompress(content) if file.suffix == ".gz" else content


def _published_as(file: Path) -> str | None:
    """Return the data set that this is a published file of; None if it is another file."""
    reads = (file.read_bytes, partial(_content, file))  # the second one only if the first sum is not known
    sums = (hashlib.md5(read(), usedforsecurity=False).hexdigest() for read in reads)
    known = idx_tables()["sums"]
    return next((known[sum_] for sum_ in sums if sum_ in known), None)


def read_idx(file: Path) -> Tensor:
    """Return the bytes of an IDX file, uint8, in its shape.

    Raises:
        OSError, EOFError, ValueError: it cannot be read, or is something else.
    """
    content = _content(file)
    zeros, kind, num_sides = int.from_bytes(content[:2]), content[2:3], int.from_bytes(content[3:4])
    start = 4 + 4 * num_sides
    shape = np.frombuffer(content[4:start], ">u4").astype(int)
    if zeros or kind != bytes([_BYTES]) or len(content) != start + shape.prod():
        raise ValueError("it is no whole IDX file of bytes")
    return torch.frombuffer(bytearray(content[start:]), dtype=torch.uint8).view(*shape)


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
    val_ratio: RatioBelowOne,
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

    train = data_with({"mean": [0.0], "std": [1.0]}).train
    assert isinstance(train, InMemorySource) and isinstance(train.inputs, Tensor)
    images = train.inputs  # without the validation part

    def measured_on(part: base.Indices) -> base.Data:
        measured = statistics(images[torch.as_tensor(part)])
        return data_with(dict(zip(("mean", "std"), map(list, measured), strict=True)))

    return replace(measured_on(range(len(images))), with_statistics_of=measured_on)


def cifar(
    *,
    variant: Literal["cifar10", "cifar100"],
    root: str,
    input_shape: Sequence[int],
    num_classes: int,
    download: bool,
    val_ratio: RatioBelowOne,
    split_seed: int,
    mean: Sequence[float],
    std: Sequence[Positive],
    augment: Augment | None,
) -> base.Data:
    """Return CIFAR-10, or CIFAR-100 with its 100 fine labels (Krizhevsky, 2009): 50,000 + 10,000 images of 32 x 32.

    They are in `root/cifar-10-batches-py` or `root/cifar-100-python`. Pixels in 0..1 are normalized per channel by
    `mean` and `std`. (The often copied `std` 0.2023, 0.1994, 0.2010 of CIFAR-10 is the mean of the standard deviations
    of single images.)
    """
    archive = _cifar_archive(variant, Path(root))
    data = _build(archive, archive.read(download), augment, mean, std)
    return _cut_val(base.check_shapes(data, input_shape, num_classes), val_ratio, split_seed)


def _cifar_archive(variant: str, root: Path) -> Archive:
    import torchvision.datasets
    from torchvision.datasets.utils import calculate_md5

    dataset: Any = getattr(torchvision.datasets, variant.upper())
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
    name = variant.replace("cifar", "CIFAR-")
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
