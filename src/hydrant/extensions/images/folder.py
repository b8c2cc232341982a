"""Images in one folder per class, the layout of ImageNet, decoded and augmented by workers."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hydrant.data.base import DamagedSamples, Data, Reader, check_normalization, check_shapes
from hydrant.data.dataset import make_parts
from hydrant.data.loader import LoaderSource, Transform
from hydrant.errors import ConfigError
from hydrant.extensions.images.decoders import Decoder, decoder_of
from hydrant.files.plain_values import NotNegativeInt, Positive, PositiveRatio, Ratio
from hydrant.files.user_files import visible_files


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

    scale: tuple[Positive, Positive]
    ratio: tuple[Positive, Positive]
    hflip: Ratio
    color_jitter: float | Sequence[float] | None
    auto_augment: str | None
    re_prob: Ratio
    re_mode: Literal["const", "rand", "pixel"]

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
    input_shape: tuple[int, int, int],
    num_classes: int,
    train_dir: str,
    val_dir: str | None,
    test_dir: str | None,
    extra_val: Mapping[str, str],
    num_workers: NotNegativeInt,
    on_error: Literal["fail", "skip"],
    decoder: Literal["pillow", "pillow_draft", "simplejpeg"],
    interpolation: Literal["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"],
    crop_pct: PositiveRatio,
    mean: Sequence[float],
    std: Sequence[Positive],
    augment: ImageAugment,
) -> Data:
    """Return the images under `root/train_dir/<class>/`, `root/val_dir/<class>/` and so on, read as RGB by a `decoder`.

    `test_dir` and `val_dir` may be None. `extra_val` are the folders of further validation sets, by their name.
    Evaluation resizes the image so that the input is `crop_pct` of its shorter edge, and crops the center.
    `on_error=skip` skips images that cannot be read; `fail` ends the run.
    """
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
            lacks, adds = sorted({*classes} - {*its_classes}), sorted({*its_classes} - {*classes})
            message = f"{Path(root, folder)} lacks {lacks[:10]} and adds {adds[:10]}"
            remedy = "it must hold the class folders of the training images, which may be empty"
            raise ConfigError(key, message, remedy=remedy)
        return of_images(images)

    def of_files(files: Sequence[Path]) -> LoaderSource:
        paths = np.array([os.fsencode(file) for file in files])
        return of_images(_Images(Path(), paths, np.zeros(len(files), dtype=np.int64), reader))

    data = Data(
        **make_parts(source, train=train_dir, val=val_dir, test=test_dir, extra_val=extra_val),
        input_shape=(3, *shape[1:]),
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
    if not root.is_dir():
        message = f"no folder {root.absolute()}"
        raise ConfigError("data.root", message, remedy=f"set it to the folder that contains {split_dir}/")
    if not folder.is_dir():
        raise ConfigError(key, f"no folder {folder}; it must hold one folder of images for each class")
    classes = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != ".")
    paths = [path[len(str(folder)) + 1 :] for path in visible_files(folder, is_image_file)]
    paths = [path for path in paths if os.sep in path]
    paths.sort(key=lambda path: (path.partition(os.sep)[0], *os.path.split(path)))  # as torchvision does
    names = [path.partition(os.sep)[0] for path in paths]
    empty = [] if may_lack_images else sorted({*classes} - {*names})
    if empty or not classes:
        missing = f"valid file for the classes {', '.join(empty)}" if classes else "class folder"
        raise ConfigError(key, f"{folder}: Found no {missing}")
    indices = {name: index for index, name in enumerate(classes)}
    targets = np.array([indices[name] for name in names], dtype=np.int64)
    return _Images(folder, np.array(list(map(os.fsencode, paths))), targets, decoder), tuple(classes)


def _timm_transform(**options: Any) -> Transform:
    from timm.data.transforms_factory import create_transform

    transform: Any = create_transform(**options)
    return transform
