"""Short digests of files, by which a changed content is known. Imports no torch."""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrant.files.user_files import open_regular

SMALL = 16 * 2**20
"""Bytes: a file of this size is hashed as a whole."""
BLOCK_BYTES = 4096
_SAMPLED_BLOCKS = 16
_MAX_FILES = 16
_SPLITS = ("train", "val", "test")
_OF_PATHS = ("hydrant.extensions.tables.csv", "hydrant.data.tensors", "hydrant.data.memmap")
"""Data sets whose splits are paths, relative to the current folder."""


def block_starts(size: int) -> Sequence[int]:
    """Return where the blocks begin that are hashed of a file: one if it is small, else some that are spread evenly."""
    if size <= SMALL:
        return [0]
    return [number * (size - BLOCK_BYTES) // (_SAMPLED_BLOCKS - 1) for number in range(_SAMPLED_BLOCKS)]


def digest_of(files: Sequence[Path]) -> str:
    """Return a digest of the sizes and contents of files. Of a large file it reads some blocks.

    Raises:
        OSError: one cannot be read.
    """
    digest = hashlib.sha256()
    for path in files:
        with open_regular(path) as opened:
            size = opened.seek(0, 2)
            digest.update(f"{size}\n".encode())
            for start in block_starts(size):
                opened.seek(start)
                digest.update(opened.read(SMALL if size <= SMALL else BLOCK_BYTES))
    return digest.hexdigest()[:16]


def split_digests(data: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of each split that a config of data names by a file, or by a folder of a few files.

    There is none of a folder of many files, or of what cannot be read, as the data set itself then says.

    Args:
        data: the config at `data`. Only data sets whose splits are paths count.
    """
    if data.get("_target_") not in _OF_PATHS:
        return {}
    named = {key: data.get(key) for key in _SPLITS}
    named |= {f"extra_val.{name}": value for name, value in (data.get("extra_val") or {}).items()}
    digests = dict[str, str]()
    for key, value in named.items():
        with contextlib.suppress(OSError):
            files = _files_of(Path(value)) if isinstance(value, str) else []
            if 0 < len(files) <= _MAX_FILES:
                digests[key] = digest_of(files)
    return digests


def _files_of(path: Path) -> list[Path]:
    """Return a file, or the files in a folder that are not hidden; none if it has folders."""
    if not path.is_dir():
        return [path]
    files = [file for file in sorted(path.iterdir()) if not file.name.startswith(".")]
    return files if all(file.is_file() for file in files) else []
