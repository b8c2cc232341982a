"""JPEG files shortened to their first rows, decoded by libjpeg."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from hydrant.extensions.images.folder import first_rows

simplejpeg = pytest.importorskip("simplejpeg")  # no wheel for Python 3.15

CONTEXT = 2  # rows above the end that may be interpolated otherwise


def jpeg(height: int = 77, width: int = 70, mode: str = "RGB", **options: Any) -> bytes:
    """Return a JPEG of noise, in which no row is like another."""
    shape = (height, width, 3)[: 3 if mode == "RGB" else 2]
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "jpeg", **options)
    return stream.getvalue()


@pytest.mark.parametrize("num_rows", [3, 8, 16, 17, 40, 76])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"subsampling": 0},
        {"subsampling": 1},
        {"optimize": True},
        {"restart_marker_rows": 1},
        {"restart_marker_blocks": 3},
        {"mode": "L"},
        {"exif": Image.Exif(), "comment": b"\xff\xc0 is no header here"},
    ],
    ids=lambda options: " ".join(options) or "plain",
)
def test_the_first_rows_are_those_of_the_whole_image(num_rows: int, options: dict[str, Any]) -> None:
    content = jpeg(**options)
    shortened = first_rows(content, num_rows)
    assert shortened is not None
    pixels = simplejpeg.decode_jpeg(shortened, strict=False)
    assert pixels.shape == (num_rows, 70, 3)
    whole = simplejpeg.decode_jpeg(content)
    assert np.array_equal(pixels[:-CONTEXT], whole[: num_rows - CONTEXT])
    assert not np.array_equal(whole[:-1], whole[1:])


@pytest.mark.parametrize(
    "content",
    [jpeg(progressive=True), jpeg()[:-2], jpeg()[:-500], jpeg() + b"more", jpeg()[:20], b"", b"\xff\xd8\xff\xd9"],
    ids=["progressive", "no end", "truncated", "bytes behind the end", "no header", "empty", "no segment"],
)  # fmt: skip
def test_files_whose_rest_matters_are_not_shortened(content: bytes) -> None:
    assert first_rows(content, 40) is None


def test_a_file_is_not_made_longer() -> None:
    assert first_rows(jpeg(), 77) is None
    assert first_rows(jpeg(), 100) is None
