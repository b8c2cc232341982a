"""Tensors in files, read without code that they might hold."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from hydrant.batch import Tensors
from hydrant.checks import suggestion
from hydrant.errors import ConfigError, DataError, typed_line

TENSOR_FILES = (".pt", ".npz", ".npy")
"""A `.pt` file is written by `torch.save`, an `.npz` file by `numpy.savez`, an `.npy` file by `numpy.save`."""


def load_tensors(path: Path) -> Any:
    """Return what a tensor file holds: of a `.pt` file anything, of `.npz` a dict of tensors, of `.npy` a tensor.

    Raises:
        DataError: it cannot be read.
    """
    suffix = path.suffix.lower()
    try:
        if suffix == ".pt":
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Validating sparse tensor")  # _dense refuses them
                return _dense(torch.load(path, map_location="cpu", weights_only=True))
        loaded = np.load(path, allow_pickle=False)
        if suffix == ".npy":
            return torch.from_numpy(loaded)
        with loaded as arrays:
            return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except Exception as error:  # a library may raise anything for a file of another kind
        raise DataError(f"{path} cannot be read: {typed_line(error)}") from error


def _dense(content: Any) -> Any:
    """Return the content of a file, if all its tensors are dense.

    Raises:
        ValueError: a tensor is sparse or quantized.
    """
    if isinstance(content, torch.Tensor) and (content.layout != torch.strided or content.is_quantized):
        raise ValueError(
            "it holds a sparse or quantized tensor; save tensor.to_dense() or tensor.dequantize()"
        )
    if isinstance(content, Mapping | list | tuple):
        for inner in content.values() if isinstance(content, Mapping) else content:
            _dense(inner)
    return content


def read_inputs(path: Path, key: str) -> Tensors:
    """Return the inputs in a tensor file: all of it if it is one array, else the entry `inputs`.

    Raises:
        ConfigError: there is no such entry; the message names `key`, the config key of the file.
        DataError: the file cannot be read.
    """
    content = load_tensors(path)
    if not isinstance(content, Mapping):
        return content
    entries = cast("Mapping[str, Tensors]", content)
    if "inputs" in entries:
        return entries["inputs"]
    if len(entries) == 1 and path.suffix.lower() == ".npz":
        return next(iter(entries.values()))
    raise ConfigError(
        key, f"{path} has no entry 'inputs'{suggestion('inputs', map(str, entries), 'Entries')}"
    )
