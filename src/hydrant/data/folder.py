"""Images in one folder per class, the layout of ImageNet, decoded and augmented by workers."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hydrant.checks import check_known, unknown_name
from hydrant.data.base import DamagedSamples, Data, Reader, check_normalization, check_shapes
from hydrant.data.dataset import make_parts
from hydrant.data.decoders import Decoder, decoder_of
from hydrant.data.loader import LoaderSource, Transform
from hydrant.errors import ConfigError
from hydrant.files.plain_values import NotNegativeInt, PositiveRatio, Ratio
from hydrant.files.user_files import visible_files

_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "box", "hamming", "lanczos")


@dataclass(frozen=True, kw_only=True)
class ImageAugment:
    """Random crop, flip, color jitter and erasing by `timm.data.create_transform`, with its argument names.

    Args:
        scale, ratio: range of the area (of the whole image, 0..1) and of the aspect ratio of the crop that is resized
            to the input.
        hflip: probability of mirroring.
        color_jitter: strength for brightness, contrast and saturation: one number, three, or four with hue; None: off.
        auto_augment: a policy such as `rand-m9-mstd0.5`, which replaces the color jitter.
        re_prob: probability of erasing a random rectangle.
        re_mode: what fills it: `const` (the mean color), `rand` (one random color) or `pixel` (noise).
    """

    scale: Sequence[float]
    ratio: Sequence[float]
    hflip: Ratio
    color_jitter: float | Sequence[float] | None
    auto_augment: str | None
    re_prob: Ratio
    re_mode: str

    def __post_init__(self) -> None:
        for name, (low, high) in {"scale": self.scale, "ratio": self.ratio}.items():
            if not 0 < low <= high:
                message = f"[{low}, {high}] is not a range of positive numbers"
                raise ConfigError(f"data.augment.{name}", message)
        if self.re_mode not in ("const", "rand", "pixel"):
            raise unknown_name("data.augment.re_mode", "fill", self.re_mode, ("const", "rand", "pixel"))

    def transform(self, **common: Any) -> Transform:
        """Return the training transform. `common` are the arguments shared with evaluation: size, mean, std ...

        Raises:
            ConfigError: an argument is out of its range, or timm rejects it.
        """
        jitter = self.color_jitter
        try:
            return _timm_transform(
                **common,
                is_training=True,
                scale=tuple(self.scale),
                ratio=tuple(self.ratio),
                hflip=self.hflip,
                color_jitter=tuple(jitter) if isinstance(jitter, Sequence) else jitter,
                auto_augment=self.auto_augment,
                re_prob=self.re_prob,
                re_mode=self.re_mode,
                # Erasing needs normalized floats. Without it, workers send uint8 and the device normalizes.
                normalize=self.re_prob > 0,
            )
        except (AssertionError, KeyError, ValueError) as error:
            values = f"auto_augment={self.auto_augment!r}, color_jitter={jitter!r}"
            message = f"timm rejects {values} ({error}); rand-m9-mstd0.5 and 0.4 are usual values"
            raise ConfigError("data.augment", message) from error


def image_folder(
    *,
    root: str,
    input_shape: Sequence[int],
    num_classes: int,
    train_dir: str,
    val_dir: str | None,
    test_dir: str | None,
    extra_val: Mapping[str, str],
    num_workers: NotNegativeInt,
    on_error: Literal["fail", "skip"],
    decoder: str,
    interpolation: str,
    crop_pct: PositiveRatio,
    mean: Sequence[float],
    std: Sequence[float],
    augment: ImageAugment,
) -> Data:
    """Return the images under `root/train_dir/<class>/`, `root/val_dir/<class>/` and so on, read as RGB by a `decoder`.

    `test_dir` and `val_dir` may be None. `extra_val` are the folders of further validation sets, by their name.
    Evaluation resizes the image so that the input is `crop_pct` of its shorter edge, and crops the center.
    `on_error=skip` skips images that cannot be read; `fail` ends the run.
    """
    if len(input_shape) != 3 or input_shape[0] != 3:
        message = f"{list(input_shape)} is configured, but images are RGB: [3, height, width]"
        raise ConfigError("data.input_shape", message)
    check_known("data.interpolation", "interpolation", interpolation, _INTERPOLATIONS)
    check_normalization(mean, std, num_channels=3)
    from torchvision.datasets.folder import IMG_EXTENSIONS

    shape = tuple(input_shape)
    reader = decoder_of(decoder, interpolation)
    _, classes = train = _scan(Path(root), train_dir, "data.train_dir", reader, may_lack_images=False)
    mean, std = tuple(mean), tuple(std)
    common: dict[str, Any] = {"input_size": shape, "interpolation": interpolation, "mean": mean, "std": std}
    resize = _timm_transform(**common, is_training=False, crop_pct=crop_pct, normalize=False)
    transforms = reader.for_training(augment.transform(**common)), reader.for_evaluation(resize)
    damaged = DamagedSamples(on_error == "skip", "; repair or remove it, or skip it with data.on_error=skip")

    def of_images(images: _Images) -> LoaderSource:
        return LoaderSource(
            images, *transforms, mean, std, num_workers, images.name_of, damaged, names_are_files=True
        )

    def source(name: str, folder: str) -> LoaderSource:
        key = f"data.{name}" if name.startswith("extra_val.") else f"data.{name}_dir"
        is_train = name == "train"
        images, its_classes = (
            train if is_train else _scan(Path(root), folder, key, reader, may_lack_images=True)
        )
        if its_classes != classes:
            raise ConfigError(key, _difference(Path(root, folder), classes, its_classes))
        return of_images(images)

    def of_files(files: Sequence[Path]) -> LoaderSource:
        paths = np.array([os.fsencode(file) for file in files])
        return of_images(_Images(Path(), paths, np.zeros(len(files), dtype=np.int64), reader))

    data = Data(
        **make_parts(source, train=train_dir, val=val_dir, test=test_dir, extra_val=extra_val),
        input_shape=shape,
        num_classes=len(classes),
        damaged=damaged,
        class_names=classes,
        reader=Reader(files=of_files, suffixes=IMG_EXTENSIONS),
    )
    return check_shapes(data, input_shape, num_classes)


@dataclass(frozen=True)
class _Images:
    """The image files of a split, in arrays, because each worker would copy every element of a list by reading it."""

    folder: Path
    paths: np.ndarray  # (N,) bytes, relative to the folder
    targets: np.ndarray  # (N,) int64
    decoder: Decoder

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int, /) -> tuple[Any, int]:
        return self.decoder.open(self.name_of(index)), int(self.targets[index])

    def name_of(self, index: int) -> str:
        return str(self.folder / os.fsdecode(self.paths[index]))  # an absolute path stays as it is


def _scan(
    root: Path, split_dir: str, key: str, decoder: Decoder, *, may_lack_images: bool
) -> tuple[_Images, tuple[str, ...]]:
    """Return the images of a split and its classes. `may_lack_images`: the folder of a class may be empty.

    Hidden files and folders, such as `.ipynb_checkpoints`, and files with other endings than images are left out.
    """
    from torchvision.datasets.folder import is_image_file

    folder = root / split_dir

    def parts(path: str) -> list[str]:
        """Return the class of a file, the folders between, and its name."""
        return path[len(str(folder)) + 1 :].split("/")

    def is_image(path: str) -> bool:
        return len(parts(path)) > 1 and is_image_file(path)

    if not root.is_dir():
        message = f"no folder {root.absolute()}"
        raise ConfigError("data.root", message, remedy=f"set it to the folder that contains {split_dir}/")
    if not folder.is_dir():
        raise ConfigError(key, f"no folder {folder}; it must hold one folder of images for each class")
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != ".")
    files = list(visible_files(folder, is_image, once=False))
    files.sort(key=lambda path: (parts(path)[0], *os.path.split(path)))
    empty = [] if may_lack_images else sorted({*classes} - {parts(path)[0] for path in files})
    if empty or not classes:
        missing = f"valid file for the classes {', '.join(empty)}" if classes else "class folder"
        raise ConfigError(key, f"{folder}: Found no {missing}")
    _check_links(folder, key, {path.rpartition(os.sep)[0] for path in files})
    paths = [os.fsencode(os.path.relpath(path, folder)) for path in files]
    indices = {name: index for index, name in enumerate(classes)}
    targets = np.array([indices[parts(path)[0]] for path in files], dtype=np.int64)
    return _Images(folder, np.array(paths), targets, decoder), tuple(classes)


def _check_links(folder: Path, key: str, directories: Collection[str]) -> None:
    """Check that no link leads back to a folder above, or into that of another class.

    Raises:
        ConfigError: one does, so images would be read many times, with wrong labels.
    """
    seen: dict[tuple[int, int], Path] = {}
    for name in sorted(directories):
        path = Path(name)
        stat = path.stat()
        other = seen.setdefault((stat.st_dev, stat.st_ino), path)
        classes = {place.relative_to(folder).parts[0] for place in (path, other)}
        if other in path.parents or len(classes) > 1:
            message = f"{path} is the same folder as {other}, so its images would be read twice"
            raise ConfigError(key, message, remedy="remove the link that leads there")


def _timm_transform(**options: Any) -> Transform:
    from timm.data.transforms_factory import create_transform

    transform: Any = create_transform(**options)
    return transform


def _difference(val: Path, classes: Sequence[str], val_classes: Sequence[str]) -> str:
    missing, unknown = sorted({*classes} - {*val_classes}), sorted({*val_classes} - {*classes})
    lists = [("lacks", missing), ("adds", unknown)]
    parts = [f"{verb} {', '.join(names[:10])}" for verb, names in lists if names]
    message = f"{val} must hold the class folders of the training images, but {' and '.join(parts)}"
    return f"{message}; the folder of a class without images may be empty" if missing else message
