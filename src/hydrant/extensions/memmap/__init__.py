"""NumPy files that stay on disk: a sample is read when it is needed, so the files may be larger than the memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hydrant.batch import Tensors, map_tensors
from hydrant.data import Data, InMemorySource, LoaderSource, Reader
from hydrant.data.dataset import make_parts, map_style_source
from hydrant.errors import ConfigError, DataError, typed_line
from hydrant.files.on_disk import check_regular
from hydrant.files.plain_values import NotNegativeInt

_AS_TORCH = {"uint16": np.int64, "uint32": np.int64}
"""Integer types that torch's embeddings refuse, with a type that holds the same integers."""


def memmap(
    *,
    train: str,
    val: str,
    test: str | None,
    extra_val: Mapping[str, str],
    input_shape: Sequence[int] | None,
    num_classes: int | None,
    num_workers: NotNegativeInt,
) -> Data:
    """Return the samples in folders of `.npy` files, which are memory-mapped and read by worker processes.

    The first dimension of every array is the sample. `targets.npy` holds the targets, if there are any. `inputs.npy`
    alone is the input; if there are other files, the input is a dict of them by name. Integers stay integers.

    Raises:
        ConfigError: a folder or its files are missing, or the arrays have different numbers of samples.
        DataError: a file is no array of numbers.
    """

    files = dict[str, Path]()

    def source(key: str, folder: str) -> LoaderSource:
        arrays = Arrays.open(f"data.{key}", files.setdefault(key, Path(folder)))
        return map_style_source(f"data.{key}", arrays, None, None, num_workers)

    return Data(
        **make_parts(source, train=train, val=val, test=test, extra_val=extra_val),
        input_shape=None if input_shape is None else tuple(input_shape),
        num_classes=num_classes,
        reader=Reader(tensors=_of_tensors),
        files=files,
    )


class Arrays:
    """The samples of several memory-mapped arrays, as pairs (input, target). A copy in a worker maps them itself."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = dict(files)

    @classmethod
    def open(cls, key: str, folder: Path) -> Arrays:
        """Map the files of a folder; see `memmap`."""
        files = {file.stem: file for file in sorted(folder.glob("*.npy"))}
        if not files.keys() - {"targets"}:
            message = f"{folder} is no folder with inputs.npy, or other .npy files besides targets.npy"
            raise ConfigError(key, message)
        arrays = cls(files)
        sizes = {name: len(array) for name, array in arrays._arrays.items()}
        if len(set(sizes.values())) > 1:
            shown = ", ".join(f"{size} in {name}.npy" for name, size in sizes.items())
            raise ConfigError(key, f"{folder} has different numbers of samples: {shown}")
        return arrays

    def __reduce__(self) -> tuple[Any, ...]:
        return Arrays, (self._files,)  # pickling a mapped array would read it as a whole

    def __len__(self) -> int:
        return len(next(iter(self._arrays.values())))

    def __getitem__(self, index: int) -> tuple[Tensors, Tensors]:
        sample = {name: _tensor(array[index]) for name, array in self._arrays.items()}
        target = sample.pop("targets", ())
        return (sample["inputs"] if sample.keys() == {"inputs"} else sample), target

    @cached_property
    def _arrays(self) -> dict[str, np.memmap]:
        return {name: _mapped(file) for name, file in self._files.items()}


def _of_tensors(inputs: Tensors) -> InMemorySource:
    """Return inputs in memory as samples of the same types as those of files."""

    def as_of_files(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.long() if str(tensor.dtype).removeprefix("torch.") in _AS_TORCH else tensor

    return InMemorySource(map_tensors(as_of_files, inputs), (), has_pixels=False)


def _mapped(file: Path) -> np.memmap:
    try:
        check_regular(file)
        array = np.load(file, mmap_mode="r", allow_pickle=False)
        # Fails if torch lacks this type, or a single number is no sample.
        torch.from_numpy(np.zeros(min(1, len(array)), _AS_TORCH.get(array.dtype.name, array.dtype)))
    except (OSError, ValueError, TypeError, EOFError) as error:
        raise DataError(f"{file} cannot be read: {typed_line(error)}") from error
    return array


def _tensor(values: Any) -> torch.Tensor:
    array = np.array(values)  # a copy, because torch does not take memory that cannot be written
    return torch.from_numpy(array.astype(_AS_TORCH.get(array.dtype.name, array.dtype), copy=False))
