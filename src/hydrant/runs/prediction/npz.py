"""Write arrays as an .npz file: always the same bytes for the same arrays, which may be larger than the memory."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import IO

import numpy as np

from hydrant.training.prediction import Arrays


def write_arrays(stream: IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    """Write an .npz file. (`numpy.savez` cannot name an array `file`.)"""
    write_joined(stream, arrays)


def write_joined(
    stream: IO[bytes],
    whole: Mapping[str, np.ndarray],
    like: Mapping[str, np.ndarray] = MappingProxyType({}),
    parts: Callable[[], Iterable[Mapping[str, np.ndarray]]] = tuple,
    num_rows: int = 0,
) -> None:
    """Write an .npz file of whole arrays, and of arrays whose rows are in several parts.

    Args:
        stream: the file.
        whole: the whole arrays by name.
        like: the names, types and shapes of the others, but for the number of rows.
        parts: returns their parts; called once for each name.
        num_rows: of all parts.
    """
    with zipfile.ZipFile(stream, "w") as file:
        for name, array in whole.items():
            _write(file, name, array.dtype, array.shape, [array])
        for name, array in like.items():
            _write(file, name, array.dtype, (num_rows, *array.shape[1:]), (part[name] for part in parts()))


def read_arrays(stream: IO[bytes]) -> Arrays:
    """Return the arrays of an .npz file, which executes no code.

    Raises:
        OSError, ValueError, zipfile.BadZipFile: it is damaged.
    """
    with np.load(stream, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _write(
    file: zipfile.ZipFile, name: str, dtype: np.dtype, shape: tuple[int, ...], parts: Iterable[np.ndarray]
) -> None:
    descr = np.lib.format.dtype_to_descr(dtype)
    with file.open(f"{name}.npy", "w", force_zip64=True) as member:  # its time is always 1980
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(member, header)
        for part in parts:
            member.write(part.tobytes())
