"""Read the files of a published data set, download missing ones, and name damaged ones.

Images in IDX files, plain or compressed by gzip: MNIST and the data sets that were published in its format.
"""

import gzip
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hydrant.errors import ConfigError, DataError, HydrantError, log
from hydrant.files.atomic_write import locked

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
    from hydrant.files.read_file import load_config  # only to download: the loop needs no YAML

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
