"""Data sets in files: a folder of images, and small versions of MNIST and CIFAR in the published formats."""

import codecs
import gzip
import hashlib
import importlib
import pickle
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marks import slow

from hydrant.data import Data

CLASSES = ("ant", "bee", "cat")
NUM_TRAIN, NUM_VAL = 7, 3  # images per class


def write_images(folder: Path, num_images: int, seed: int) -> None:
    """Write `num_images` JPEG files with noise, of different sizes, one of them gray."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for idx in range(num_images):
        height, width = rng.integers(24, 48, size=2)
        coarse = rng.integers(0, 256, (height // 4, width // 4, 3), dtype=np.uint8)
        image = Image.fromarray(coarse).resize((int(width), int(height)))
        (image.convert("L") if idx == 0 else image).save(folder / f"{idx}.jpg", quality=95)


@pytest.fixture
def image_root(tmp_path: Path) -> Path:
    """A folder with `train` and `val`, each with three class folders."""
    root = tmp_path / "images"
    for split, num_images in (("train", NUM_TRAIN), ("val", NUM_VAL)):
        for class_idx, name in enumerate(CLASSES):
            write_images(root / split / name, num_images, seed=10 * class_idx + num_images)
    return root


STEMS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
IMAGES = np.random.default_rng(0).integers(0, 256, (40, 28, 28), dtype=np.uint8)


@dataclass(frozen=True)
class Published:
    """A published data set: MNIST or CIFAR."""

    name: str  # of the variant; its function in hydrant.extensions.images has the name without the number
    dataset: Any  # the class of torchvision
    folder: str  # of the files, relative to root
    files: tuple[str, ...]  # of training, of validation, and of CIFAR the names of the classes
    shape: tuple[int, ...]
    num_classes: int

    def build(self, root: Path, **changes: Any) -> Data:
        shapes = {"input_shape": list(self.shape), "num_classes": self.num_classes}
        normalization = {"mean": [0.5] * self.shape[0], "std": [0.25] * self.shape[0]}
        options = {
            "variant": self.name, "root": str(root), "download": False, "val_ratio": 0.0, "split_seed": 0,
            "augment": None, **normalization, **shapes, **changes,
        }  # fmt: skip
        return getattr(importlib.import_module("hydrant.extensions.images"), self.name.rstrip("01"))(
            **options
        )

    def pixels(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        """Return uint8 images (N, C, H, W) and labels (N,), the same at every call."""
        count = {"train": 2 * self.num_classes, "val": self.num_classes}[split]
        images = np.random.default_rng(count).integers(0, 256, (count, *self.shape), dtype=np.uint8)
        return images, np.arange(count) % self.num_classes


def write_idx(path: Path, values: np.ndarray) -> None:
    """Write an IDX file: magic number (type 8: unsigned byte; number of axes), sizes and bytes, all big-endian."""
    sizes = struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(struct.pack(">HBB", 0, 8, values.ndim) + sizes + values.astype(np.uint8).tobytes())


def write_idx_set(
    folder: Path, stems: tuple[str, ...] = STEMS, *, zipped: bool = True, first: int = 0
) -> list[Path]:
    """Write the four files of a small data set; return them."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = IMAGES[:30], first + np.arange(30) % 10, IMAGES[30:], first + np.arange(10)
    for stem, values in zip(stems, contents, strict=True):
        write_idx(folder / stem, values)
        if zipped:
            (folder / f"{stem}.gz").write_bytes(gzip.compress((folder / stem).read_bytes()))
            (folder / stem).unlink()
    return sorted(folder.iterdir())


def write_mnist(mnist: Published, folder: Path) -> None:
    for split, prefix in (("train", "train"), ("val", "t10k")):
        images, labels = mnist.pixels(split)
        write_idx(folder / f"{prefix}-images-idx3-ubyte", images[:, 0])
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", labels)


class _Dtype2009:
    """Pickled like `uint8` by NumPy in 2009: with `align=0`, about which NumPy 2.4.0 to 2.4.4 warns."""

    def __reduce__(self) -> tuple[Any, ...]:
        return np.dtype, ("u1", 0, 1), (3, "|", None, None, None, -1, -1, 0)


@dataclass
class _Array2009:
    values: np.ndarray

    def __reduce__(self) -> tuple[Any, ...]:
        reconstruct, arguments, _ = np.zeros(0).__reduce__()
        content = codecs.decode(self.values.tobytes(), "latin1")  # a string of Python 2
        return reconstruct, arguments, (1, self.values.shape, _Dtype2009(), False, content)


def write_cifar(cifar: Published, folder: Path) -> None:
    *train_files, val_file, meta_file = cifar.files
    label_key = "labels" if cifar.name == "cifar10" else "fine_labels"
    for split, files in (("train", train_files), ("val", [val_file])):
        parts = [np.array_split(values, len(files)) for values in cifar.pixels(split)]
        for file, images, labels in zip(files, *parts, strict=True):
            entry = {"data": _Array2009(images.reshape(len(images), -1)), label_key: labels.tolist()}
            (folder / file).write_bytes(pickle.dumps(entry, protocol=2))
    names = {cifar.dataset.meta["key"]: [f"class {n}" for n in range(cifar.num_classes)]}
    (folder / meta_file).write_bytes(pickle.dumps(names, protocol=2))


@pytest.fixture(params=["mnist", "cifar10", *slow("cifar100")])
def published(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Published:
    """A data set with its files in `tmp_path/data`. torchvision has their checksums, but no server to download from."""
    from torchvision.datasets import CIFAR10, CIFAR100, MNIST

    nowhere = (tmp_path / "nowhere").as_uri() + "/"
    if request.param == "mnist":
        files = tuple(
            f"{p}-{kind}-ubyte" for p in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")
        )
        made = Published("mnist", MNIST, "MNIST/raw", files, (1, 28, 28), 10)
        (tmp_path / "data" / made.folder).mkdir(parents=True)
        write_mnist(made, tmp_path / "data" / made.folder)
        monkeypatch.setattr(MNIST, "mirrors", [nowhere])
        return made
    dataset: Any = {"cifar10": CIFAR10, "cifar100": CIFAR100}[request.param]
    files = (*(name for name, _ in (*dataset.train_list, *dataset.test_list)), dataset.meta["filename"])
    num_classes = {"cifar10": 10, "cifar100": 100}[request.param]
    made = Published(request.param, dataset, dataset.base_folder, files, (3, 32, 32), num_classes)
    folder = tmp_path / "data" / made.folder
    folder.mkdir(parents=True)
    write_cifar(made, folder)
    sums = [[name, hashlib.md5((folder / name).read_bytes()).hexdigest()] for name in files]
    monkeypatch.setattr(dataset, "url", nowhere + "archive.tar.gz")
    monkeypatch.setattr(dataset, "train_list", sums[:-2])
    monkeypatch.setattr(dataset, "test_list", sums[-2:-1])
    monkeypatch.setattr(dataset, "meta", {**dataset.meta, "md5": sums[-1][1]})
    return made
