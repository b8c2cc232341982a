"""Write a folder of tokens. It appears when it is complete, so a reader never sees half of it."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np

from hydrant.data.token_files import HEADER, MAGIC
from hydrant.files.atomic_write import remove_unlocked, sync

MAX_SHARD_TOKENS = 2**31 - 1
"""The largest number of tokens in a file, because the header counts them by an int32."""


@contextmanager
def new_folder(folder: Path) -> Generator[Path]:
    """Yield a temporary folder that becomes `folder` at the end of the block. If the block raises, it is removed.

    What killed processes have left of the same folder is removed first.

    Raises:
        OSError: it cannot be made, or `folder` holds something.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    left = re.compile(rf"\.{re.escape(folder.name)}\.[a-z0-9_]{{8}}\.tmp")
    for path in folder.parent.iterdir():
        if left.fullmatch(path.name) and path.is_dir():
            remove_unlocked(path)
    temporary, descriptor = _locked_folder(folder)
    try:
        yield temporary
        for file in temporary.iterdir():
            sync(file)
        temporary.chmod(0o755)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        os.close(descriptor)


def _locked_folder(folder: Path) -> tuple[Path, int]:
    """Make a temporary folder beside `folder` and return it with the descriptor that locks it."""
    while True:
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".tmp", dir=folder.parent))
        with suppress(FileNotFoundError):  # another process has taken it for one that was left
            descriptor = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY)
            with suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if temporary.exists():  # else another process has removed it before it was locked
                return temporary, descriptor
            os.close(descriptor)


class TokenWriter:
    """Writes the tokens of a split into files `<split>_000000.bin` and so on, each with a header.

    Args:
        folder: the folder of the files.
        split: `train` or `val`.
        dtype: a type of `MAGIC`.
        shard_size: how many tokens a file holds; the last one may hold fewer.
    """

    def __init__(self, folder: Path, split: str, dtype: str, shard_size: int) -> None:
        self._folder, self._split, self._dtype, self._shard_size = folder, split, dtype, shard_size
        self._file: BinaryIO | None = None
        self._in_file = 0
        self.num_tokens = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish_file()

    @property
    def num_files(self) -> int:
        return -(-self.num_tokens // self._shard_size)

    def write(self, tokens: np.ndarray) -> None:
        """Append tokens, whole numbers of shape (N,)."""
        while len(tokens):
            if self._file is None:
                self._file = (self._folder / f"{self._split}_{self.num_files:06}.bin").open("wb")
                self._write_header()
            part = tokens[: self._shard_size - self._in_file]
            self._file.write(part.astype(np.dtype(self._dtype).newbyteorder("<")).tobytes())
            self._in_file += len(part)
            self.num_tokens += len(part)
            if self._in_file == self._shard_size:
                self._finish_file()
            tokens = tokens[len(part) :]

    def _finish_file(self) -> None:
        if self._file is not None:
            self._write_header()
            self._file.close()
            self._file, self._in_file = None, 0

    def _write_header(self) -> None:
        assert self._file is not None
        header = np.zeros(HEADER, dtype="<i4")
        header[:3] = *MAGIC[self._dtype], self._in_file
        self._file.seek(0)
        self._file.write(header.tobytes())
