"""NumPy arrays that stay in their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from hydrant.commands.eject.program.data_loading import Loader, TrainingBatches, loaders, test_loader
from hydrant.commands.eject.program.settings import HAS_DICTS, TEST, TRAIN, VAL


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


def load_memmap() -> tuple[TrainingBatches, Loader]:
    """Return the samples to train on and to evaluate on."""
    return loaders(Arrays(TRAIN), Arrays(VAL))


def load_memmap_test() -> Loader:
    """Return the samples to test on."""
    return test_loader(Arrays(TEST))
