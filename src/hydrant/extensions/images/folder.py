"""Images in one folder per class, the layout of ImageNet, decoded and augmented by workers.

A decoder reads the whole image, or only the part that a crop needs. A JPEG stores frequencies, so it is cheaper to
decode at a half, a quarter or an eighth of its size. A reducing decoder knows the crop before it decodes. It chooses
the smallest size that is still at least the model's input.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from hydrant.data import base
from hydrant.data.dataset import make_parts, to_bytes
from hydrant.data.loader import LoaderSource, Transform
from hydrant.errors import ConfigError
from hydrant.files.on_disk import check_regular, visible_files
from hydrant.files.plain_values import NotNegativeInt, Positive, PositiveRatio, Ratio
from hydrant.installation import require_extra

if TYPE_CHECKING:
    from PIL.Image import Image


def open_rgb(path: str) -> Image:
    """Return the image in a file, in RGB.

    Raises:
        OSError, ValueError: it cannot be read, or its mode has no range.
    """
    from PIL import Image

    check_regular(path)
    with Path(path).open("rb") as file:
        return to_bytes(Image.open(file)).convert("RGB")


_RESIZED_BY_TORCH = ("bilinear", "bicubic")
_REDUCTIONS = (8, 4, 2)  # of JPEG's blocks of 8 x 8 pixels; libjpeg has no fast code for those in between


def decoder_of(name: str, interpolation: str) -> Decoder:
    """Return the decoder `data.decoder=name`.

    Raises:
        ConfigError: its package is missing, or it does not resize by `interpolation`.
    """
    decoders: dict[str, Callable[[], Decoder]] = {
        "pillow": _Whole,
        "pillow_draft": lambda: _Reducing(_by_pillow, interpolation),
        "simplejpeg": lambda: _Reducing(_by_simplejpeg, interpolation),
    }
    if name == "simplejpeg":
        require_extra("simplejpeg", ["simplejpeg"], "data.decoder", "simplejpeg")
    if name != "pillow" and interpolation not in _RESIZED_BY_TORCH:
        message = f"{name} resizes by {' or '.join(_RESIZED_BY_TORCH)}, not by {interpolation}"
        raise ConfigError("data.decoder", message, remedy="take one, or pillow")
    return decoders[name]()


class _Whole:
    """Decodes all of an image by Pillow, as torchvision and timm do."""

    def open(self, path: str) -> Image:
        return open_rgb(path)

    def adapted(self, training: Any, evaluation: Any) -> tuple[Transform, Transform]:
        return training, evaluation


@dataclass(frozen=True)
class _Region:
    """A rectangle of an image, in pixels of the file."""

    top: int
    left: int
    height: int
    width: int

    def reduction(self, size: tuple[int, int]) -> int:
        """Return the largest reduction that leaves this region at least as large as `size` (H, W).

        >>> [_Region(0, 0, 500, width).reduction((100, 100)) for width in (1000, 300, 199)]
        [4, 2, 1]
        """
        ratio = min(self.height // size[0], self.width // size[1])
        return next((reduction for reduction in _REDUCTIONS if reduction <= ratio), 1)

    def reduced(self, by: int) -> tuple[slice, slice]:
        """Return the rows and columns of the reduced image that are nearest to this region."""
        return (
            slice(round(self.top / by), round((self.top + self.height) / by)),
            slice(round(self.left / by), round((self.left + self.width) / by)),
        )


@dataclass(frozen=True)
class _File:
    """An image file that is not decoded yet."""

    height: int
    width: int
    decode: Callable[[_Region, int], np.ndarray]
    """(region, reduction) -> the region in RGB, uint8 (H, W, 3). Only JPEG is reduced."""

    @property
    def shape_only(self) -> Tensor:
        """The shape in the form from which timm and torchvision compute crops and sizes."""
        return torch.empty(0, self.height, self.width)

    def resized(self, region: _Region, size: tuple[int, int], interpolation: str) -> Tensor:
        """Return the region in RGB with another size (H, W): uint8 (3, H, W).

        torch resizes bytes by the method of Pillow, at a third of its time; a byte may differ by 1, seldom by 2.
        """
        pixels = np.ascontiguousarray(self.decode(region, region.reduction(size)))
        # This order of operations gives channels_last strides, which torch resizes fastest.
        images = torch.from_numpy(pixels[np.newaxis].transpose(0, 3, 1, 2))
        return torch.nn.functional.interpolate(images, size, mode=interpolation, antialias=True)[0]


@dataclass(frozen=True)
class _Reducing:
    """Decodes only as much as a crop needs, and resizes it by torch."""

    read_header: Callable[[bytes], _File]
    interpolation: str

    def open(self, path: str) -> _File:
        return self.read_header(_content(path))

    def adapted(self, training: Any, evaluation: Any) -> tuple[Transform, Transform]:
        from timm.data.transforms import MaybePILToTensor
        from torchvision.transforms import Compose, RandomHorizontalFlip

        (crop, *later), (resize, *to_input) = training.transforms, evaluation.transforms
        need_images = not all(isinstance(step, RandomHorizontalFlip | MaybePILToTensor) for step in later)
        train = Compose([_RandomCrop(crop, self.interpolation), *[_as_image] * need_images, *later])
        return train, Compose([_Resize(resize, self.interpolation), *to_input])


@dataclass(frozen=True)
class _RandomCrop:
    """Decodes the region of a random crop and resizes it. It draws the same numbers as `crop`."""

    crop: Any  # timm's RandomResizedCropAndInterpolation
    interpolation: str

    def __call__(self, file: _File) -> Tensor:
        region = _Region(*self.crop.get_params(file.shape_only, self.crop.scale, self.crop.ratio))
        return file.resized(region, self.crop.size, self.interpolation)


@dataclass(frozen=True)
class _Resize:
    """Decodes an image and resizes it to the same size as `resize`."""

    resize: Any  # timm's ResizeKeepRatio, or torchvision's Resize of the shorter edge
    interpolation: str

    def __call__(self, file: _File) -> Tensor:
        least, shorter = self.resize.size, min(file.height, file.width)
        if isinstance(least, int):
            height, width = int(least * file.height / shorter), int(least * file.width / shorter)
        else:
            height, width = self.resize.get_params(file.shape_only, least, self.resize.longest)
        return file.resized(_Region(0, 0, file.height, file.width), (height, width), self.interpolation)


Decoder = _Whole | _Reducing
"""Opens image files, and adapts timm's transforms, which begin with a random crop or by resizing, to what it opens."""


def _as_image(pixels: Tensor) -> Image:
    """Return pixels (3, H, W) as an image of Pillow, for the transforms that need one."""
    from PIL import Image

    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def _content(path: str) -> bytes:
    check_regular(path)
    with io.FileIO(path) as file:  # less work than Path.read_bytes, which matters at 2 ms for an image
        return file.readall()


def _by_pillow(content: bytes) -> _File:
    from PIL import Image

    image = Image.open(io.BytesIO(content))  # reads the header only

    def decode(region: _Region, reduction: int) -> np.ndarray:
        is_reduced = image.draft("RGB", (image.width // reduction, image.height // reduction)) is not None
        rows, columns = region.reduced(reduction if is_reduced else 1)
        box = columns.start, rows.start, columns.stop, rows.stop
        return np.array(to_bytes(image).crop(box).convert("RGB"))

    return _File(image.height, image.width, decode)


def _by_simplejpeg(content: bytes) -> _File:
    """Open a JPEG of gray or color. Pillow opens other formats, CMYK, and what simplejpeg finds to be damaged."""
    import simplejpeg

    try:
        height, width, color_space, _ = simplejpeg.decode_jpeg_header(content)
    except ValueError:
        return _by_pillow(content)
    if color_space in ("CMYK", "YCCK"):
        return _by_pillow(content)
    size = int(height), int(width)

    def decode(region: _Region, reduction: int) -> np.ndarray:
        height, width = (-(-side // reduction) for side in size)
        try:
            pixels = simplejpeg.decode_jpeg(content, min_height=height, min_width=width, min_factor=reduction)
        except ValueError:  # Pillow also reads files with errors that can be ignored
            return _by_pillow(content).decode(region, reduction)
        return pixels[region.reduced(reduction)]

    return _File(*size, decode)


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
        values = {name: tuple(v) if isinstance(v, list) else v for name, v in vars(self).items()}
        try:
            # Erasing needs normalized floats. Without it, workers send uint8 and the device normalizes.
            return _timm_transform(**common, **values, is_training=True, normalize=self.re_prob > 0)
        except (AssertionError, KeyError, ValueError) as error:
            such = f"auto_augment={self.auto_augment!r}, color_jitter={self.color_jitter!r}"
            message = f"timm rejects {such} ({error}); rand-m9-mstd0.5 and 0.4 are usual values"
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
) -> base.Data:
    """Return the images under `root/train_dir/<class>/`, `root/val_dir/<class>/` and so on, read as RGB by a `decoder`.

    `test_dir` and `val_dir` may be None. `extra_val` are the folders of further validation sets, by their name.
    Evaluation resizes the image so that the input is `crop_pct` of its shorter edge, and crops the center.
    `on_error=skip` skips images that cannot be read; `fail` ends the run.
    """
    base.check_normalization(mean, std, num_channels=3)
    from torchvision.datasets.folder import IMG_EXTENSIONS

    shape = tuple(input_shape)
    reader = decoder_of(decoder, interpolation)
    _, classes = train = _scan(Path(root, train_dir), "data.train_dir", reader)
    mean, std = tuple(mean), tuple(std)
    common: dict[str, Any] = {"input_size": shape, "interpolation": interpolation, "mean": mean, "std": std}
    resize = _timm_transform(**common, is_training=False, crop_pct=crop_pct, normalize=False)
    transforms = reader.adapted(augment.transform(**common), resize)
    hint = "; repair or remove it, or skip it with data.on_error=skip"
    damaged = base.DamagedSamples(on_error == "skip", hint)

    def of_images(images: _Images) -> LoaderSource:
        return LoaderSource(
            images, *transforms, mean, std, num_workers, images.name_of, damaged, names_are_files=True
        )

    def source(name: str, folder: str) -> LoaderSource:
        key = f"data.{name}" if name.startswith("extra_val.") else f"data.{name}_dir"
        images, its_classes = train if name == "train" else _scan(Path(root, folder), key, reader)
        base.check_same_classes(str(images.folder), its_classes, classes)
        return of_images(images)

    def of_files(files: Sequence[Path]) -> LoaderSource:
        paths = np.array([os.fsencode(file) for file in files])
        return of_images(_Images(Path(), paths, np.zeros(len(files), dtype=np.int64), reader))

    data = base.Data(
        **make_parts(source, train=train_dir, val=val_dir, test=test_dir, extra_val=extra_val),
        input_shape=(3, *shape[1:]),
        num_classes=len(classes),
        damaged=damaged,
        class_names=classes,
        reader=base.Reader(files=of_files, suffixes=IMG_EXTENSIONS),
    )
    return base.check_shapes(data, input_shape, num_classes)


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


def _scan(folder: Path, key: str, decoder: Decoder) -> tuple[_Images, tuple[str, ...]]:
    """Return the images of a split and its classes. To train, each class needs one.

    Hidden files and folders, such as `.ipynb_checkpoints`, and files with other endings than images are left out.
    """
    from torchvision.datasets.folder import is_image_file

    classes = _classes_in(folder, key)
    paths = [path[len(str(folder)) + 1 :] for path in visible_files(folder, is_image_file)]
    paths = [path for path in paths if os.sep in path]
    paths.sort(key=lambda path: (path.partition(os.sep)[0], *os.path.split(path)))  # as torchvision does
    names = [path.partition(os.sep)[0] for path in paths]
    empty = sorted({*classes} - {*names}) if key == "data.train_dir" else []
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


def _classes_in(folder: Path, key: str) -> list[str]:
    """Return the names of the folders in a folder that are not hidden."""
    if not folder.is_dir():
        raise ConfigError(
            key, f"no folder {folder}", remedy="it must hold one folder of images for each class"
        )
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and entry.name[0] != ".")


def class_folders(path: str, *, _parent_: Any = None) -> int:
    """Return the number of classes of an image folder: its subfolders that are not hidden.

    Raises:
        ConfigError: The folder does not exist.
    """
    return len(_classes_in(Path(path), "data.root"))
