"""Samples that worker processes read: data sets of the user, images in folders, and arrays in files."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.data.transforms_factory import create_transform
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset, default_collate
from torchvision.datasets import ImageFolder

from hydrant.commands.eject.program.data import samples_of
from hydrant.commands.eject.program.settings import *
from hydrant.data.pixels import open_rgb
from hydrant.seeding import SAMPLE, hash_of

Loader = DataLoader[Any]  # of batches


class Seeded(Dataset[Any]):
    """Samples by the number of their use in training. What is random in a sample depends only on it and on SEED."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset: Any = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, use: int) -> Any:
        seed = hash_of(SEED, SAMPLE, use)
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        torch.default_generator.manual_seed(seed)
        return self.dataset[use % len(self.dataset)]


class TrainingBatches:
    """The training batches of each update, read in advance."""

    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = Seeded(dataset) if AUGMENTS else dataset
        self.update, self.current = -2, list[Any]()  # the last update that was read, and its batches

    def of(self, update: int) -> list[Any]:
        """Return the batches of an update; those of the one after it are then read."""
        if update == self.update:  # it is tried again
            return self.current
        if update != self.update + 1:
            self.batches = iter(loader(self.dataset, batch_sampler=indices_from(update)))
        num_batches = (
            BATCH_SIZE // (MICRO_BATCH_SIZE * NUM_RANKS) if RANKED else BATCH_SIZE // MICRO_BATCH_SIZE
        )
        self.update, self.current = update, list(itertools.islice(self.batches, num_batches))
        return self.current


def indices_from(update: int) -> Iterator[list[int]]:
    """Yield the indices of the samples of one batch after the other, from an update on."""
    for each in itertools.count(update):
        batches = samples_of(each).split(MICRO_BATCH_SIZE)
        for chosen in batches[RANK::NUM_RANKS] if RANKED else batches:
            yield chosen.tolist()


def loader(dataset: Dataset[Any], **options: Any) -> Loader:
    """Return a loader of batches."""
    options |= {"num_workers": NUM_WORKERS, "pin_memory": DEVICE.type == "cuda"}
    # Else Python 3.14 imports torch in each.
    options["multiprocessing_context"] = "fork" if NUM_WORKERS else None
    if COLLATES:
        options["collate_fn"] = collate
    return DataLoader(dataset, **options)


def loaders(train: Dataset[Any], val: Dataset[Any]) -> tuple[TrainingBatches, Loader]:
    """Return the batches of two data sets."""
    if LIMITS_TRAIN:
        train = Subset(train, range(NUM_SAMPLES))
    if LIMITS_VAL:
        val = Subset(val, range(NUM_VAL_SAMPLES))
    if SEEDS_VAL:
        val = Seeded(val)
    if RANKED:
        batches = torch.arange(NUM_VAL_SAMPLES).split(EVAL_BATCH_SIZE)[RANK::NUM_RANKS]
        return TrainingBatches(train), loader(val, batch_sampler=[chosen.tolist() for chosen in batches])
    return TrainingBatches(train), loader(val, batch_size=EVAL_BATCH_SIZE)


def test_loader(test: Dataset[Any]) -> Loader:
    """Return the batches of the samples to test on."""
    if LIMITS_TEST:
        test = Subset(test, range(NUM_TEST_SAMPLES))
    if SEEDS_VAL:
        test = Seeded(test)
    return loader(test, batch_size=EVAL_BATCH_SIZE)


def collate(samples: list[Any]) -> tuple[Any, Any]:
    """Return samples as a batch; doubles, which Python's numbers become, as float32."""
    inputs, targets = default_collate(samples)
    if HAS_DICTS:
        return {name: as_float32(part) for name, part in inputs.items()}, as_float32(targets)
    return as_float32(inputs), as_float32(targets)


def as_float32(tensor: Tensor) -> Tensor:
    """Return doubles as float32, and other tensors as they are."""
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def to_device(inputs: Any, targets: Tensor) -> tuple[Any, Tensor]:
    """Return a batch on the device."""
    if HAS_DICTS:
        return {name: part.to(DEVICE) for name, part in inputs.items()}, targets.to(DEVICE)
    if IS_BYTES:  # 0 to 255
        mean, std = (torch.tensor(values, device=DEVICE).view(-1, 1, 1) for values in (MEAN, STD))
        pixels = inputs.to(DEVICE, non_blocking=True).float()
        return (pixels - 255 * mean) * (1 / (255 * std)), targets.to(DEVICE, non_blocking=True)
    return inputs.to(DEVICE, non_blocking=True), targets.to(DEVICE, non_blocking=True)


def load_image_folder() -> tuple[TrainingBatches, Loader]:
    """Return the images to train on, changed at random, and those to evaluate on."""
    train_transform: Any = create_transform(**IMAGES, **AUGMENTATION, is_training=True)
    val_transform: Any = create_transform(**IMAGES, crop_pct=CROP_PCT, normalize=False)
    train = ImageFolder(Path(ROOT, TRAIN_DIR), train_transform, loader=open_rgb)
    return loaders(train, ImageFolder(Path(ROOT, VAL_DIR), val_transform, loader=open_rgb))


def load_image_folder_test() -> Loader:
    """Return the images to test on."""
    transform: Any = create_transform(**IMAGES, crop_pct=CROP_PCT, normalize=False)
    return test_loader(ImageFolder(Path(ROOT, TEST_DIR), transform, loader=open_rgb))


class Arrays(Dataset[Any]):
    """The samples in a folder of `.npy` files, each of which holds one entry for each sample."""

    def __init__(self, folder: str) -> None:
        self.arrays = {file.stem: np.load(file, mmap_mode="r") for file in sorted(Path(folder).glob("*.npy"))}

    def __len__(self) -> int:
        return len(self.arrays["targets"])

    def __getitem__(self, index: int) -> tuple[Any, Tensor]:
        if HAS_DICTS:
            sample = {name: as_tensor(array[index]) for name, array in self.arrays.items()}
            target = sample.pop("targets")
            return sample, target
        return as_tensor(self.arrays["inputs"][index]), as_tensor(self.arrays["targets"][index])


def as_tensor(values: Any) -> Tensor:
    """Return numbers as a tensor: doubles as float32, and types that torch's embeddings do not take as int64."""
    array = np.array(values)
    other = {"float64": np.float32, "uint16": np.int64, "uint32": np.int64}
    return torch.from_numpy(array.astype(other.get(array.dtype.name, array.dtype)))
