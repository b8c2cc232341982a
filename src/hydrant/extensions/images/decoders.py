"""Decoders of image files: of the whole image, or only of the part that a crop needs.

A JPEG stores frequencies, so it is cheaper to decode at a half, a quarter or an eighth of its size. A reducing decoder
knows the crop before it decodes. It chooses the smallest size that is still at least the model's input. simplejpeg also
stops below the last row of the crop.

JPEG files shortened to their first rows, so that a decoder stops there (ITU-T T.81, 1992, annex B).
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from hydrant.data.dataset import to_bytes
from hydrant.errors import ConfigError
from hydrant.files.user_files import check_regular
from hydrant.installation import require_extra

if TYPE_CHECKING:
    from PIL.Image import Image


# A file consists of segments: a marker of two bytes, the length of the rest in two bytes, and the rest.
_START, _END, _SCAN = b"\xff\xd8", b"\xff\xd9", b"\xff\xda"
_SEQUENTIAL = b"\xff\xc0", b"\xff\xc1"  # the header of files whose rows of blocks lie one after the other


def first_rows(content: bytes, num_rows: int) -> bytearray | None:
    """Return a JPEG whose header says that it has `num_rows` rows; the bytes of the other rows are left at its end.

    Its last two rows may differ from those of the whole image, as decoders interpolate color between rows. None: the
    file has no more rows, its rows do not lie one after the other, or its end is missing.

    >>> header = bytes([0xFF, 0xC0, 0, 11, 8, 1, 44, 1, 144, 1, 1, 0x11, 0])  # 300 rows of 400 pixels
    >>> first_rows(b"\\xff\\xd8" + header + b"\\xff\\xd9", 7)[7:11] == bytes([0, 7, 1, 144])
    True
    """
    if not (content.startswith(_START) and content.endswith(_END)):
        return None
    place, marker = 2, content[2:4]
    while marker.startswith(b"\xff") and marker not in (*_SEQUENTIAL, _SCAN):
        place += 2 + int.from_bytes(content[place + 2 : place + 4], "big")
        marker = content[place : place + 2]
    height = slice(place + 5, place + 7)  # after the marker, the length and the bits of a sample
    if marker not in _SEQUENTIAL or num_rows >= int.from_bytes(content[height], "big"):
        return None
    shortened = bytearray(content)
    shortened[height] = num_rows.to_bytes(2, "big")
    return shortened


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
_ROWS_OF_CONTEXT = 2  # below a row, which libjpeg needs to interpolate its color


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

    def for_training(self, transform: Any) -> Callable[[Any], Any]:
        return transform

    def for_evaluation(self, transform: Any) -> Callable[[Any], Any]:
        return transform


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
        return interpolate(images, size, mode=interpolation, antialias=True)[0]


@dataclass(frozen=True)
class _Reducing:
    """Decodes only as much as a crop needs, and resizes it by torch."""

    read_header: Callable[[bytes], _File]
    interpolation: str

    def open(self, path: str) -> _File:
        return self.read_header(_content(path))

    def for_training(self, transform: Any) -> Callable[[Any], Any]:
        from timm.data.transforms import MaybePILToTensor
        from torchvision.transforms import Compose, RandomHorizontalFlip

        crop, *later = transform.transforms
        need_images = not all(isinstance(step, RandomHorizontalFlip | MaybePILToTensor) for step in later)
        return Compose([_RandomCrop(crop, self.interpolation), *[_as_image] * need_images, *later])

    def for_evaluation(self, transform: Any) -> Callable[[Any], Any]:
        from torchvision.transforms import Compose

        resize, *later = transform.transforms
        return Compose([_Resize(resize, self.interpolation), *later])


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
    return _File(*size, partial(_with_simplejpeg, content, size))


def _with_simplejpeg(content: bytes, size: tuple[int, int], region: _Region, reduction: int) -> np.ndarray:
    """Return the same pixels as Pillow, which also reads files with errors that can be ignored."""
    import simplejpeg

    rows, columns = region.reduced(reduction)
    num_rows = min(size[0], (rows.stop + _ROWS_OF_CONTEXT) * reduction)
    shortened = first_rows(content, num_rows)
    height, width = (-(-edge // reduction) for edge in (num_rows if shortened else size[0], size[1]))
    try:
        pixels = simplejpeg.decode_jpeg(
            shortened or content,
            min_height=height,
            min_width=width,
            min_factor=reduction,
            strict=not shortened,  # the bytes of the other rows would be an error
        )
    except ValueError:
        return _by_pillow(content).decode(region, reduction)
    return pixels[rows, columns]
