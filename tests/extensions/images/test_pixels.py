"""Images of every mode have the right pixels in every decoder, in predictions and in data sets of Hugging Face."""

import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from marks import needing
from PIL import Image
from sources import spec

from hydrant.data import Data
from hydrant.data.dataset import to_tensor
from hydrant.errors import DataError
from hydrant.extensions.images import ImageAugment, image_folder

DECODERS = ("pillow", "pillow_draft", needing("simplejpeg", "simplejpeg"))
SIZE = (20, 24)
NO_AUGMENT = ImageAugment(
    scale=(1.0, 1.0), ratio=(1.0, 1.0), hflip=0.0, color_jitter=None, auto_augment=None, re_prob=0.0, re_mode="const"
)  # fmt: skip

Write = Callable[[Path], Path]


def saved(mode: str, value: Any, ending: str = "png", **options: Any) -> Write:
    """Return what writes an image of one color in a mode, and returns its file."""

    def write(folder: Path) -> Path:
        image = Image.new("RGB" if mode == "P" else mode, SIZE, value)
        if mode == "P":  # with the transparency of each color of its palette
            image = image.quantize(2)
            options["transparency"] = b"\x80\x00"
        file = folder / f"image.{ending}"
        image.save(file, **options)
        return file

    return write


def of_deep_colors(folder: Path) -> Path:
    """Write a PNG with 16 bits for each of three colors, which Pillow cannot write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    row = b"\x00" + struct.pack(">3H", 0, 0x80AA, 0xFFFF) * SIZE[0]
    header = struct.pack(">2I5B", *SIZE, 16, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(row * SIZE[1])), (b"IEND", b"")]
    file = folder / "image.png"
    file.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts))
    return file


def of_deep_gray(folder: Path) -> Path:
    """Write a PGM of values up to 4000, of which 1000 is a quarter."""
    file = folder / "image.pgm"
    file.write_bytes(b"P5 %d %d 4000\n" % SIZE + struct.pack(">H", 1000) * SIZE[0] * SIZE[1])
    return file


KINDS: dict[str, tuple[Write, tuple[int, int, int]]] = {
    "16 bits, PNG": (saved("I;16", 30_000), (117,) * 3),  # 30000 / 257 is 116.7
    "16 bits, white": (saved("I;16", 65_535), (255,) * 3),
    "16 bits, dark": (saved("I;16", 600), (2,) * 3),
    "16 bits, TIFF": (saved("I;16", 30_000, "tiff"), (117,) * 3),
    "16 bits, big-endian TIFF": (saved("I;16B", 30_000, "tiff"), (117,) * 3),
    "16 bits of another range, PGM": (of_deep_gray, (64,) * 3),
    "16 bits of each color, PNG": (of_deep_colors, (0, 0x80, 255)),
    "1 bit": (saved("1", 1), (255,) * 3),
    "gray with alpha": (saved("LA", (77, 128)), (77,) * 3),
    "colors with alpha": (saved("RGBA", (10, 20, 30, 0)), (10, 20, 30)),
    "palette with alpha": (saved("P", (10, 20, 30)), (10, 20, 30)),
    "CMYK": (saved("CMYK", (255, 0, 0, 0), "tiff"), (0, 255, 255)),
    "gray": (saved("L", 9), (9,) * 3),
}
REFUSED: dict[str, tuple[Write, str]] = {
    "floats": (saved("F", 0.5, "tiff"), "F, floats"),
    "32 bits": (saved("I", 70_000, "tiff"), "I, integers of 32 bits"),
}


def build(folder: Path, decoder: str) -> Data:
    return image_folder(
        root=str(folder), decoder=decoder, num_classes=1, train_dir="train", val_dir=None, test_dir=None, extra_val={},
        on_error="fail", crop_pct=1.0, mean=(0.0,) * 3, std=(1.0,) * 3, input_shape=(3, 16, 16), num_workers=0,
        interpolation="bilinear", augment=NO_AUGMENT,
    )  # fmt: skip


def written(write: Write, folder: Path) -> Path:
    (folder / "train" / "only").mkdir(parents=True)
    return write(folder / "train" / "only")


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_pixels_of_each_mode_are_right(tmp_path: Path, kind: str, decoder: str) -> None:
    write, color = KINDS[kind]
    file = written(write, tmp_path)
    data = build(tmp_path, decoder)
    assert data.reader is not None
    assert data.reader.files is not None
    trained = data.train.stream(spec(micro_batch_size=1)).micro_batches(0)
    expected = torch.tensor(color).view(1, 3, 1, 1).expand(1, 3, 16, 16)
    for batch in (
        next(iter(trained)),
        *data.train.batches(spec(), 1),
        *data.reader.files([file]).batches(spec(), 1),
    ):
        assert torch.equal((batch.inputs * 255).round(), expected.float())


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("kind", REFUSED)
def test_a_mode_without_a_range_is_refused_with_its_file(tmp_path: Path, kind: str, decoder: str) -> None:
    write, mode = REFUSED[kind]
    file = written(write, tmp_path)
    with pytest.raises(DataError, match=rf"{file} cannot be read: .*its mode is {mode}, whose range is not"):
        list(build(tmp_path, decoder).train.batches(spec(), 1))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "TIFF" not in kind or kind == "CMYK"])
def test_images_of_hugging_face_have_the_same_pixels(tmp_path: Path, kind: str) -> None:
    datasets = pytest.importorskip("datasets")  # no wheel of its pyarrow for Python 3.15
    streams = pytest.importorskip("hydrant.extensions.streams")
    import yaml

    from hydrant.config.groups import option_path

    write, color = KINDS[kind]
    file = write(tmp_path)
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["only"])})
    split = datasets.Dataset.from_dict({"image": [str(file)], "label": [0]}, features=features)
    datasets.DatasetDict(train=split, validation=split).save_to_disk(tmp_path / "saved")
    plain = yaml.safe_load(option_path("data", "hugging_face").read_text())
    del plain["_target_"]
    channels = to_tensor(Image.open(file)).shape[0]
    options = {"path": str(tmp_path / "saved"), "inputs": "image", "num_workers": 0, "num_classes": None}
    statistics = {"mean": [0.0] * channels, "std": [1.0] * channels}
    (batch,) = streams.hugging_face(**plain | options | statistics).val.batches(spec(), 1)
    pixels = (batch.inputs * 255).round()[0, : 1 if channels < 3 else 3]
    assert torch.equal(
        pixels, torch.tensor(color[: len(pixels)]).view(-1, 1, 1).expand(-1, SIZE[1], SIZE[0]).float()
    )


def test_a_gradient_of_16_bits_is_rounded_to_the_nearest_byte() -> None:
    values = np.arange(65_536, dtype=np.uint16).reshape(256, 256)
    assert torch.equal(
        to_tensor(Image.fromarray(values))[0], torch.from_numpy(np.round(values / 257).astype(np.uint8))
    )
