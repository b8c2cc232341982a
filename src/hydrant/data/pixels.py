"""The pixels of Pillow's images of every mode, as bytes: 16 bits are scaled by their range."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hydrant.files.regular_file import check_regular

if TYPE_CHECKING:
    from PIL.Image import Image

_OF_16_BITS = ("PNG", "PPM")
"""The file formats whose mode `I` has a range of 16 bits: Pillow opens 16 bits as `I`, or scales other ranges to
65535."""
_AS_THEY_ARE = ("L", "LA", "RGB", "RGBA")


def is_picture(value: object) -> bool:
    """Return whether a value is an image of Pillow, without importing it."""
    return "PIL.Image" in sys.modules and isinstance(value, sys.modules["PIL.Image"].Image)


def open_rgb(path: str) -> Image:
    """Return the image in a file, in RGB.

    Raises:
        OSError, ValueError: it cannot be read, or its mode has no range.
    """
    from PIL import Image

    check_regular(path)
    with Path(path).open("rb") as file:
        return to_bytes(Image.open(file)).convert("RGB")


def to_bytes(image: Image) -> Image:
    """Return an image whose channels are bytes, or a palette of such colors.

    Raises:
        ValueError: its mode has no range.
    """
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in _OF_16_BITS):
        values = np.asarray(image).astype(np.int64)
        # 65535 is 255, rounded to the nearest.
        return Image.fromarray(((values + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        kind = "integers of 32 bits" if image.mode == "I" else "floats"
        message = f"its mode is {image.mode}, {kind}, whose range is not known"
        raise ValueError(f"{message}; save it with 8 or 16 bits, or use data=tensors or data=memmap")
    if image.mode == "P" and "transparency" in image.info:
        return image.convert("RGBA")  # Pillow warns about other conversions
    return image


def to_tensor(image: Image) -> Tensor:
    """Return the bytes of an image, uint8 (C, H, W). C is 1 for gray, 3 for colors, and 1 more with transparency.

    Raises:
        ValueError: its mode has no range.
    """
    image = to_bytes(image)
    if image.mode not in _AS_THEY_ARE:
        image = image.convert("L" if image.mode == "1" else "RGB")
    pixels = torch.from_numpy(np.array(image))
    return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()
