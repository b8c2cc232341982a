"""Decoders of image files, on real files of every kind."""

import io
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from run_folders import assert_same_state, rows, weights
from torch import Tensor
from training_runs import Train, whole_and_resumed

from hydrant.clock import Steps
from hydrant.data import Data, StreamSpec
from hydrant.errors import ConfigError, DataError
from hydrant.extensions.images import ImageAugment, image_folder
from hydrant.extensions.images.folder import _Region, decoder_of

simplejpeg = pytest.importorskip("simplejpeg")  # no wheel for Python 3.15

REDUCING = ("pillow_draft", "simplejpeg")
NUM_FILES = 3
FLIP_ONLY = ImageAugment(
    scale=(0.1, 1.0),
    ratio=(0.75, 4 / 3),
    hflip=0.5,
    color_jitter=None,
    auto_augment=None,
    re_prob=0.0,
    re_mode="const",
)


def picture(width: int, height: int) -> Image.Image:
    """Return smooth color of a fixed seed, which differs at every place."""
    coarse = np.random.default_rng(0).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def saved(image: Image.Image, kind: str = "jpeg", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def oriented(image: Image.Image) -> bytes:
    """Return a JPEG that asks a viewer to turn it."""
    exif = Image.Exif()
    exif[274] = 6
    return saved(image, exif=exif)


def deep(image: Image.Image) -> bytes:
    return saved(Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 3), "png")


def with_stray_bytes(image: Image.Image) -> bytes:
    """Return a JPEG with bytes before its last marker, which Pillow ignores and simplejpeg rejects."""
    content = saved(image)
    return content[:-2] + b"stray" + content[-2:]


KINDS: dict[str, Callable[[Image.Image], bytes]] = {
    "jpeg": saved,
    "all colors": lambda image: saved(image, subsampling=0),
    "progressive": lambda image: saved(image, progressive=True),
    "gray": lambda image: saved(image.convert("L")),
    "cmyk": lambda image: saved(image.convert("CMYK")),
    "orientation": oriented,
    "stray bytes": with_stray_bytes,
    "png": lambda image: saved(image, "png"),
    "png with alpha": lambda image: saved(image.convert("RGBA"), "png"),
    "palette": lambda image: saved(image.quantize(32), "png", transparency=3),
    "16 bit": deep,
    "webp": lambda image: saved(image, "webp"),
}


def folder_of(root: Path, kind: str, size: tuple[int, int]) -> Path:
    """Write files of a kind; their names end in .jpg whatever they hold."""
    for split in ("train", "val"):
        (root / split / "only").mkdir(parents=True)
        for number in range(NUM_FILES):
            image = picture(size[0] + 3 * number, size[1] + number)
            (root / split / "only" / f"{number:02}.jpg").write_bytes(KINDS[kind](image))
    return root


def build(root: Path, decoder: str, **changes: Any) -> Data:
    options: dict[str, Any] = {
        "input_shape": (3, 32, 24),
        "num_workers": 0,
        "interpolation": "bicubic",
        "augment": FLIP_ONLY,
        **changes,
    }
    return image_folder(
        root=str(root), decoder=decoder, num_classes=1, train_dir="train", val_dir="val", test_dir=None,
        extra_val={}, on_error="fail",
        crop_pct=0.875, mean=(0.0,) * 3, std=(1.0,) * 3, **options,
    )  # fmt: skip


def pixels(data: Data) -> tuple[Tensor, Tensor]:
    """Return the inputs of two epochs of training and those of an evaluation, as bytes in float."""
    spec = StreamSpec(3, Steps.constant(NUM_FILES), 3, 0, 1, torch.device("cpu"))
    stream = data.train.stream(spec)
    trained = [batch.inputs for num_updates in range(2) for batch in stream.micro_batches(num_updates)]
    evaluated = [batch.inputs for batch in data.val.batches(spec, NUM_FILES)]
    return torch.cat(trained) * 255, torch.cat(evaluated) * 255


@pytest.mark.parametrize("kind", KINDS)
def test_pixels_of_every_kind_of_file_are_those_of_pillow(tmp_path: Path, kind: str) -> None:
    """Nothing is reduced, as the crops are less than twice the input. Resizing may round a byte to its neighbor."""
    root = folder_of(tmp_path, kind, (36, 40))
    whole = pixels(build(root, "pillow"))
    for decoder in REDUCING:
        for ours, reference in zip(pixels(build(root, decoder)), whole, strict=True):
            assert ours.shape == reference.shape
            difference = (ours - reference).abs()
            assert difference.max() < 2.01
            assert (difference > 1.01).float().mean() < 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_simplejpeg_and_pillow_reduce_to_the_same_pixels(tmp_path: Path, kind: str) -> None:
    """Also in files that simplejpeg leaves to Pillow, so that no pixel tells who decoded it."""
    root = folder_of(tmp_path, kind, (201, 150))
    for ours, reference in zip(*(pixels(build(root, decoder)) for decoder in REDUCING), strict=True):
        assert torch.equal(ours, reference)


@pytest.mark.parametrize("decoder", REDUCING)
@pytest.mark.parametrize("shape", [(3, 16, 16), (3, 16, 20)], ids=["square", "wide"])
def test_reduced_images_show_the_same_crop(tmp_path: Path, decoder: str, shape: tuple[int, ...]) -> None:
    """They are nearer to the same crop of the whole image than this is to itself, shifted by a pixel or mirrored."""
    root = folder_of(tmp_path, "jpeg", (201, 150))
    all_ours, references = (pixels(build(root, name, input_shape=shape)) for name in (decoder, "pillow"))
    for ours, reference in zip(all_ours, references, strict=True):
        distance = (ours - reference).abs().mean()
        for other in (ours.roll(1, 2), ours.roll(1, 3), ours.flip(3)):
            assert (other - reference)[..., 1:, 1:].abs().mean() > 2 * distance


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("jpeg", (38, 50)), ("progressive", (38, 50)), ("gray", (38, 50)), ("cmyk", (38, 50)), ("png", (300, 401))],
)  # fmt: skip
@pytest.mark.parametrize("decoder", REDUCING)
def test_no_more_is_decoded_than_the_input_needs(
    tmp_path: Path, decoder: str, kind: str, expected: tuple[int, int]
) -> None:
    path = tmp_path / "image"
    path.write_bytes(KINDS[kind](picture(401, 300)))
    file = decoder_of(decoder, "bicubic").open(str(path))
    shapes = list[tuple[int, ...]]()

    def decode(*arguments: Any) -> np.ndarray:
        shapes.append((result := file.decode(*arguments)).shape)
        return result

    replace(file, decode=decode).resized(_Region(0, 0, 300, 401), (37, 50), "bicubic")
    assert shapes == [(*expected, 3)]


@pytest.mark.parametrize("decoder", REDUCING)
def test_other_augmentations_get_the_pixels_they_need(tmp_path: Path, decoder: str) -> None:
    """Jitter, RandAugment and erasing begin with a byte that may differ by 1, and draw the same random numbers."""
    root = folder_of(tmp_path, "jpeg", (36, 40))
    changes = {"color_jitter": 0.4}, {"auto_augment": "rand-m9-mstd0.5", "re_prob": 0.5}
    for change in changes:
        augment = ImageAugment(**{**vars(FLIP_ONLY), **change})
        ours, reference = (pixels(build(root, name, augment=augment))[0] for name in (decoder, "pillow"))
        assert (ours - reference).abs().mean() < 1


@pytest.mark.parametrize("decoder", REDUCING)
def test_a_truncated_image_is_damaged(tmp_path: Path, decoder: str) -> None:
    root = folder_of(tmp_path, "jpeg", (201, 150))
    path = root / "val" / "only" / "02.jpg"
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(DataError, match=rf"^{path} cannot be read: .*truncated"):
        pixels(build(root, decoder))


def test_a_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydrant.installation.find_spec", lambda name: None)
    message = r"^data\.decoder: simplejpeg needs simplejpeg: .*install .*\[simplejpeg\]"
    with pytest.raises(ConfigError, match=message):
        decoder_of("simplejpeg", "bicubic")
    assert decoder_of("pillow_draft", "bicubic")


def test_a_decoder_refuses_an_interpolation_that_it_lacks() -> None:
    with pytest.raises(ConfigError, match=r"^data\.decoder: pillow_draft resizes by .* not by lanczos"):
        decoder_of("pillow_draft", "lanczos")
    assert decoder_of("pillow", "lanczos")


def test_a_run_resumes_exactly_and_keeps_its_decoder(
    train: Train, monkeypatch: pytest.MonkeyPatch, workdir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for split in folder_of(workdir / "images", "jpeg", (101, 80)).iterdir():
        shutil.copytree(split / "only", split / "other")
    words = (
        "data=image_folder", "data.root=images", "data.input_shape=[3,16,16]", "data.decoder=simplejpeg",
        "data.num_workers=0", "model=mlp", "model.hidden=[8]", "tracker=local", "global_batch_size=4", "duration=4",
        "log_every=1", "eval_every=4", "save_every=2",
    )  # fmt: skip
    whole, half = whole_and_resumed(train, monkeypatch, words, stop_at=2)
    assert_same_state(weights(whole), weights(half))
    assert rows(whole) == rows(half)
    train(*words, "data.decoder=pillow", name="half", status=2)
    assert "data.decoder ('simplejpeg' there, 'pillow' here)" in capfd.readouterr().err
