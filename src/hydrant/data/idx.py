"""Images in IDX files, plain or compressed by gzip: MNIST and the data sets that were published in its format."""

from __future__ import annotations

import gzip
import hashlib
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydrant.data.archive import Archive, Images
from hydrant.errors import ConfigError, log

_BYTES = 8  # the code of the type of the elements in the header
_OPTIONS = {"MNIST": "mnist", "FashionMNIST": "fashion_mnist", "KMNIST": "kmnist"}
_PACKAGED = {"fashion_mnist": (Path("/usr/share/datasets/fashion-mnist"),)}
"""Where the packages of distributions have the files: Debian's dataset-fashion-mnist."""
_SUMS = {
    "6bbc9ace898e44ae57da46a324031adb": "MNIST",
    "a25bea736e30d166cdddb491f175f624": "MNIST",
    "2646ac647ad5339dbf082846283269ea": "MNIST",
    "27ae3e4e09519cfbb04c329615203637": "MNIST",
    "f4a8712d7a061bf5bd6d2ca38dc4d50a": "FashionMNIST",
    "9018921c3c673c538a1fc5bad174d6f9": "FashionMNIST",
    "8181f5470baa50b63fa0f6fddb340f0a": "FashionMNIST",
    "15d484375f8d13e6eb1aabb0c3f46965": "FashionMNIST",
    "bdb82020997e1d708af4cf47b453dcf7": "KMNIST",  # of the compressed files
    "e144d726b3acfaa3e44228e80efcd344": "KMNIST",
    "5c965bf0a639b31b8f53240b1b52f4d7": "KMNIST",
    "7320c461ea6c1c855c0b718fb2a4b134": "KMNIST",
}
"""The MD5 sum of what a published file holds, or of KMNIST's compressed file -> its data set."""

_LETTERS = string.ascii_uppercase + string.ascii_lowercase
# The other letters look like upper case ones.
_MERGED = string.digits + string.ascii_uppercase + "abdefghnqrt"
_DIGITS = tuple(string.digits)
_CLASSES: Mapping[str, tuple[str, ...]] = {
    "mnist": _DIGITS,
    "fashion_mnist": (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
    "kmnist": ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo"),
    "emnist_balanced": tuple(_MERGED),
    "emnist_bymerge": tuple(_MERGED),
    "emnist_byclass": tuple(string.digits + _LETTERS),
    "emnist_letters": tuple(string.ascii_lowercase),
    "emnist_digits": _DIGITS,
    "emnist_mnist": _DIGITS,
}  # fmt: skip
"""The names of the classes of each variant."""


@dataclass(frozen=True)
class IdxImages:
    """The images and classes of a published data set, in `folder`.

    Args:
        variant: a key of `_CLASSES`.
        root: its files are there, below it where torchvision puts them, or, if neither has one, where a package of the
            distribution has them.
    """

    variant: str
    root: Path

    @property
    def is_turned(self) -> bool:
        """Whether rows and columns are exchanged in the files."""
        return self._split is not None

    @property
    def first_label(self) -> int:
        """The label of the first class in the files."""
        return 1 if self._split == "letters" else 0

    @property
    def _dataset(self) -> str:
        """The name of torchvision's class."""
        return next((name for name, option in _OPTIONS.items() if option == self.variant), "EMNIST")

    @property
    def _split(self) -> str | None:
        """The part of EMNIST."""
        return self.variant.partition("emnist_")[2] if self._dataset == "EMNIST" else None

    @property
    def _stems(self) -> list[str]:
        """The names of the files without `.gz`: images and labels to train on, then those to validate on."""
        prefixes = ("train", "t10k") if self._split is None else ("train", "test")
        start = "" if self._split is None else f"emnist-{self._split}-"
        kinds = "images-idx3-ubyte", "labels-idx1-ubyte"
        return [f"{start}{prefix}-{kind}" for prefix in prefixes for kind in kinds]

    @property
    def _raw(self) -> str:
        return f"{self._dataset}/raw"

    @property
    def files(self) -> list[Path]:
        """The files, which may be missing, in the order of `_stems`."""
        folders = [self.root, self.root / self._raw, *_PACKAGED.get(self.variant, ())]
        folder = next((f for f in folders if any(_found(f, self._stems))), self.root / self._raw)
        return [next(_found(folder, [stem]), folder / stem) for stem in self._stems]

    def archive(self) -> Archive:
        """Return how to read the files and to download missing ones."""
        import torchvision.datasets

        dataset: Any = getattr(torchvision.datasets, self._dataset)
        options = {} if self._split is None else {"split": self._split}
        checks = {file: read_idx for file in self.files}
        fetch = partial(dataset, download=True, **options)
        holds = f"these files or {self._raw}"
        return Archive(self._dataset, self.root, checks, self._read, fetch, holds, self._is_published)

    def _is_published(self, file: Path) -> bool:
        return _published_as(file) == self._dataset

    def _read(self) -> Images:
        """Read the files.

        Raises:
            ConfigError: the files are those of another data set.
        """
        files = self.files
        if self.root not in files[0].parents:
            log.info(
                "%s is read from %s, because data.root has no file of it", self._dataset, files[0].parent
            )
        tensors = [read_idx(file) for file in files]
        self._check_sums(files)
        images = [images.transpose(1, 2) if self.is_turned else images for images in tensors[::2]]
        images = [images.unsqueeze(1).contiguous() for images in images]
        labels = [labels.long() - self.first_label for labels in tensors[1::2]]
        return Images((images[0], labels[0]), (images[1], labels[1]), _CLASSES[self.variant])

    def _check_sums(self, files: list[Path]) -> None:
        if self._split is not None:  # their names tell
            return
        for file in files:
            published = _published_as(file)
            if published not in (None, self._dataset):
                message = f"{file} is a file of {published} by its MD5 sum, not of {self._dataset}"
                raise ConfigError("data", message, remedy=f"write data={_OPTIONS[published]}")
            if published is None:
                log.warning("%s is not the published file of %s: its MD5 sum differs", file, self._dataset)


def _found(folder: Path, stems: list[str]) -> Iterator[Path]:
    paths = (folder / f"{stem}{ending}" for stem in stems for ending in ("", ".gz"))
    return (path for path in paths if path.is_file())


def _content(file: Path) -> bytes:
    content = file.read_bytes()
    return gzip.decompress(content) if file.suffix == ".gz" else content


def _published_as(file: Path) -> str | None:
    """Return the data set that this is a published file of; None if it is another file."""
    reads = (file.read_bytes, partial(_content, file))  # the second one only if the first sum is not known
    sums = (hashlib.md5(read(), usedforsecurity=False).hexdigest() for read in reads)
    return next((_SUMS[sum_] for sum_ in sums if sum_ in _SUMS), None)


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
