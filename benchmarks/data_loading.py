"""Data loading, compared with the loaders of torch, torchvision and timm.

In memory: the digits of scikit-learn in batches of 64. Hydrant keeps them on the device; torch's DataLoader reads the
same normalised samples from a TensorDataset. From files, in batches of 64, which two workers decode, crop at random,
resize, flip and normalise: 2,000 JPEG files of 160 x 160 pixels, resized to 128 (bilinear), and 1,000 of 500 x 400
pixels and 100 KiB, resized to 224 (bicubic). The loaders are Hydrant's `data=image_folder` with each `data.decoder`,
torchvision's ImageFolder with transforms v2, and timm's `create_loader` with its prefetcher. All loaders run in one
process on one thread, besides their workers, and take turns by blocks. Workers fill their queues before a block starts.
These queued batches and as many more are read before the clock starts, so that no loader is timed while its workers
start. A block of digits covers several epochs. A worker alone makes the same batches of bytes in the main process; what
the CPU as device adds, normalising floats, is left out. PSNR compares the crops of a decoder with the same crops by
Pillow.
"""

from __future__ import annotations

import math
import operator
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.figures import Figure
from benchmarks.statistics import interval, paired
from benchmarks.turns import in_turn
from hydrant.clock import Steps
from hydrant.data import ShiftFlip
from hydrant.data.base import Data, StreamSpec
from hydrant.data.vision import digits
from hydrant.extensions.images import ImageAugment, image_folder

BATCH_SIZE = 64
NUM_WORKERS = 2
NUM_AHEAD = 2 * NUM_WORKERS  # batches that torch's DataLoader prefetches
SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
DECODERS = ("pillow", "pillow_draft", "simplejpeg")
GOALS = {"pillow": ">= 1", "simplejpeg": ">= 1.5"}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IN_MEMORY_REMAINDER = (
    "The batches of up to 64 updates are made at once, by three operations (% and two index_select). What remains is "
    "returning each batch as a separate tensor. A DataLoader takes 3 us for each of its 64 samples."
)
JPEG_REMAINDER = (
    "Both decode with Pillow and crop with timm's transform, which is nearly all of a sample's time in a worker. "
    "Seeding the augmentation, so that it depends only on the sample, takes 10 us of about 1 ms."
)
PHOTO_REMAINDER = (
    "Half of the time of a worker with simplejpeg goes into libjpeg, which has to unpack all that lies above the end "
    "of the crop. These files are not twice as large as the input, so that no crop of them is decoded at a reduced "
    "size. A fifth goes into resizing and copying, and a seventh into Python, as with timm. Here the device is the "
    "CPU, so that both loaders also normalise floats on the two cores of their workers."
)
WORKER_REMAINDER = (
    "Resizing by Pillow takes timm twice as long as torch takes here, and it decodes the rows below the crop. The time "
    "for what is decoded by both is the same, as both use libjpeg-turbo."
)


@dataclass(frozen=True)
class Photos:
    """JPEG files of one size, and what is made of them."""

    title: str
    num_images: int
    size: tuple[int, int]  # width, height
    grain: float
    quality: int
    input_size: int
    interpolation: str


SMALL = Photos("JPEG", 2000, (160, 160), 0.3, 90, 128, "bilinear")
PHOTOS = Photos("photos", 1300, (500, 400), 1.0, 93, 224, "bicubic")  # 100 KiB


def measure(*, quick: bool) -> list[Figure]:
    """Compare in-memory data with a DataLoader, and JPEG files with other loaders."""
    torch.set_num_threads(1)
    return [*_in_memory(quick=quick), *_jpeg(quick=quick), *_decoders(quick=quick)]


def _in_memory(*, quick: bool) -> list[Figure]:
    num_blocks, num_batches = (2, 4) if quick else (11, 200)
    data = digits(augment=ShiftFlip())  # as in data=digits
    batch = next(data.train.stream(_spec(1437)).micro_batches(0))  # all samples, normalised
    pairs = TensorDataset(*batch)
    loaders = {
        "Hydrant": _stream(data),
        "DataLoader, no workers": _endless(DataLoader(pairs, BATCH_SIZE, shuffle=True, drop_last=True)),
        "DataLoader, 2 workers": _endless(_with_workers(pairs)),
    }
    factors = {"Hydrant": 1 if quick else 50}  # more batches, so that its blocks take as long as the others'
    rates = _rates(loaders, num_blocks, num_batches, factors)
    figures = [Figure(f"{title}: digits", interval(values), "batches/s") for title, values in rates.items()]
    for title in list(rates)[1:]:
        ratio = paired(rates["Hydrant"], rates[title], lambda hydrant, other: hydrant / other)
        goal = ">= 30" if title.endswith("no workers") else None
        figures.append(Figure(f"Hydrant to {title}: digits", ratio, "x", goal, remainder=IN_MEMORY_REMAINDER))
    return figures


def _jpeg(*, quick: bool) -> list[Figure]:
    num_blocks, num_batches, num_images = (2, 1, 512) if quick else (9, 20, SMALL.num_images)
    photos = replace(SMALL, num_images=num_images)
    with tempfile.TemporaryDirectory() as root:
        _write_images(Path(root), photos)
        loaders = {
            "Hydrant": _stream(_hydrant_folder(root, photos, "pillow")),
            "torchvision": _torchvision_loader(root, photos),
            "timm": _timm_loader(root, photos),
        }
        rates = _rates(loaders, num_blocks, num_batches, {})
        del loaders  # their workers must end before the files are deleted
    figures = _image_rates(rates, photos)
    for title, goal in (("torchvision", None), ("timm", ">= 1")):
        ratio = paired(rates["Hydrant"], rates[title], operator.truediv)
        figures.append(Figure(f"Hydrant to {title}: JPEG", ratio, "x", goal, remainder=JPEG_REMAINDER))
    return figures


def _decoders(*, quick: bool) -> list[Figure]:
    """Compare the decoders with timm's loader, and their pixels with those of Pillow."""
    num_blocks, num_batches, num_images = (2, 1, 384) if quick else (7, 12, PHOTOS.num_images)
    photos = replace(PHOTOS, num_images=num_images)
    with tempfile.TemporaryDirectory() as root:
        _write_images(Path(root), photos)
        folders = {name: _hydrant_folder(root, photos, name) for name in DECODERS}
        loaders = {name: _stream(folder) for name, folder in folders.items()}
        rates = _rates({**loaders, "timm": _timm_loader(root, photos)}, num_blocks, num_batches, {})
        crops = {name: _first_batch(folder) for name, folder in folders.items()}
        alone = _worker_rates(root, photos, num_blocks, num_batches)
        del loaders  # their workers must end before the files are deleted
    figures = _image_rates(rates, photos) + _image_rates(alone, replace(photos, title="a worker alone"))
    for title, measured, remainder in (
        (photos.title, rates, PHOTO_REMAINDER),
        ("a worker alone", alone, WORKER_REMAINDER),
    ):
        for name in DECODERS:
            ratio, goal = paired(measured[name], measured["timm"], operator.truediv), GOALS.get(name)
            why = JPEG_REMAINDER if name == "pillow" else remainder
            figures.append(Figure(f"{name} to timm: {title}", ratio, "x", goal, remainder=why))
    for name in DECODERS[1:]:
        figures.append(
            Figure(f"PSNR of {name} to pillow: {photos.title}", _psnr(crops[name], crops["pillow"]), "dB")
        )
    return figures


def _worker_rates(root: str, photos: Photos, num_blocks: int, num_batches: int) -> dict[str, list[float]]:
    """Return the batches a second at which one process reads, decodes, crops and resizes, by loader."""
    loaders: dict[str, Iterable[Any]] = {
        name: _hydrant_folder(root, photos, name, num_workers=0).train.stream(_spec())._loader
        for name in DECODERS
    }
    loaders["timm"] = _endless(_timm_loader(root, photos, num_workers=0).loader)  # not yet normalised
    trials = {title: partial(_read, iter(loader), num_batches) for title, loader in loaders.items()}
    in_turn(trials, 1)
    return in_turn(trials, num_blocks)


def _read(batches: Iterator[Any], num_batches: int) -> float:
    """Return the batches a second at which these are read."""
    start = time.perf_counter()
    for _ in range(num_batches):
        next(batches)
    return num_batches / (time.perf_counter() - start)


def _image_rates(rates: dict[str, list[float]], photos: Photos) -> list[Figure]:
    return [
        Figure(f"{title}: {photos.title}", interval([BATCH_SIZE * rate for rate in values]), "images/s")
        for title, values in rates.items()
    ]


def _psnr(ours: torch.Tensor, reference: torch.Tensor) -> float:
    """Return the peak signal-to-noise ratio of normalised images in dB."""
    error = (ours - reference) * torch.tensor(STD).view(-1, 1, 1)
    return -10 * math.log10(float(error.square().mean()))


def _rates(
    loaders: dict[str, Iterable[Any]], num_blocks: int, num_batches: int, factors: dict[str, int]
) -> dict[str, list[float]]:
    """Return the batches a second of each block, by loader. `factors` multiply `num_batches`."""
    trials = {
        title: partial(_block, loader, num_batches * factors.get(title, 1))
        for title, loader in loaders.items()
    }
    in_turn(trials, 1)  # starts the workers
    return in_turn(trials, num_blocks)


def _block(loader: Iterable[Any], num_batches: int) -> float:
    """Return the batches a second of a block."""
    batches = iter(loader)
    for _ in range(NUM_AHEAD + min(NUM_AHEAD, num_batches)):  # the queued ones, and as many that are not
        next(batches)
    rate = _read(batches, num_batches)
    time.sleep(1.5 * NUM_AHEAD / min(rate, 1000))  # until its workers have filled their queues and are idle
    return rate


def _spec(batch_size: int = BATCH_SIZE) -> StreamSpec:
    return StreamSpec(0, Steps.constant(batch_size), batch_size, 0, 1, torch.device("cpu"))


def _stream(data: Data) -> Iterator[Any]:
    stream = data.train.stream(_spec())
    return (batch for num_updates in count() for batch in stream.micro_batches(num_updates))


def _first_batch(data: Data) -> torch.Tensor:
    return next(iter(data.train.stream(_spec()).micro_batches(0))).inputs


def _endless(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def _with_workers(samples: Any) -> DataLoader[Any]:
    return DataLoader(
        samples, BATCH_SIZE, shuffle=True, drop_last=True, num_workers=NUM_WORKERS, persistent_workers=True
    )


def _write_images(root: Path, photos: Photos) -> None:
    """Write clouds of colour with some grain, whose JPEG files are about as large as those of photographs."""
    rng = np.random.default_rng(0)
    for number in range(photos.num_images):
        colours, noise = (
            Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
            for width, height in ((10, 10), photos.size)
        )
        clouds = colours.resize(photos.size, Image.Resampling.BICUBIC)
        grain = noise.filter(ImageFilter.GaussianBlur(1))
        for part in ("train", "val")[: 2 if number < 10 else 1]:
            folder = root / part / f"class_{number % 10}"
            folder.mkdir(parents=True, exist_ok=True)
            image = Image.blend(clouds, grain, photos.grain)
            image.save(folder / f"{number}.jpg", quality=photos.quality)


def _hydrant_folder(root: str, photos: Photos, decoder: str, num_workers: int = NUM_WORKERS) -> Data:
    augment = ImageAugment(
        scale=SCALE,
        ratio=RATIO,
        hflip=0.5,
        color_jitter=None,
        auto_augment=None,
        re_prob=0.0,
        re_mode="const",
    )
    return image_folder(
        root=root, input_shape=[3, photos.input_size, photos.input_size], num_classes=10, train_dir="train",
        val_dir="val", test_dir=None, extra_val={}, num_workers=num_workers, on_error="fail", decoder=decoder,
        interpolation=photos.interpolation, crop_pct=0.875, mean=MEAN, std=STD, augment=augment,
    )  # fmt: skip


def _torchvision_loader(root: str, photos: Photos) -> Iterable[Any]:
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    transform = v2.Compose([
        v2.PILToTensor(), v2.RandomResizedCrop(photos.input_size, SCALE, RATIO, antialias=True),
        v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD),
    ])  # fmt: skip
    return _with_workers(ImageFolder(f"{root}/train", transform))


def _timm_loader(root: str, photos: Photos, num_workers: int = NUM_WORKERS) -> Any:
    from timm.data import create_dataset, create_loader

    return create_loader(
        create_dataset("", f"{root}/train", is_training=True), (3, photos.input_size, photos.input_size), BATCH_SIZE,
        is_training=True, scale=SCALE, ratio=RATIO, color_jitter=0.0, interpolation=photos.interpolation,
        mean=MEAN, std=STD, num_workers=num_workers, device=torch.device("cpu"), use_prefetcher=True,
        persistent_workers=num_workers > 0,
    )  # fmt: skip
