"""Short digests of files, by which a changed content is known. Imports no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrant.files.regular_file import open_regular

SMALL = 16 * 2**20
"""Bytes: a file of this size is hashed as a whole."""
BLOCK_BYTES = 4096
_SAMPLED_BLOCKS = 16
_MAX_FILES = 16
_SPLITS = ("train", "val", "test")


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

    Folders of many files, such as images, and data sets that know their files themselves have none.

    Args:
        data: the config at `data`.

    Raises:
        OSError: a file cannot be read.
    """
    named = {key: data.get(key) for key in _SPLITS}
    named |= {f"extra_val.{name}": value for name, value in (data.get("extra_val") or {}).items()}
    digests = dict[str, str]()
    for key, value in named.items():
        path = Path(value) if isinstance(value, str) else None
        if path is None or not path.exists():
            continue
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        if len(files) <= _MAX_FILES and all(file.is_file() for file in files):
            digests[key] = digest_of(files)
    return digests
