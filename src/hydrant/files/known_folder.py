"""A folder that stays the one that was found: no link that replaces it, or that is in it, leads elsewhere."""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hydrant.files.regular_file import open_regular

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@dataclass(frozen=True)
class KnownFolder:
    """A folder, by its path and its identity on the disk."""

    path: Path
    identity: tuple[int, int]  # its device and inode

    @classmethod
    def found(cls, path: Path) -> KnownFolder:
        """Return the folder that a path leads to now.

        Raises:
            OSError: there is none.
        """
        real = path.resolve(strict=True)
        return cls(real, _identity(os.stat(real)))  # noqa: PTH116

    def open(self, *names: str) -> BinaryIO:
        """Open a file for reading, by the names of the folders on the way and its own. Links are not followed.

        Raises:
            FileNotFoundError: a folder has no such entry.
            OSError: it is no file, or another folder has taken the place of this one.
        """
        *between, last = names
        with ExitStack() as opened:
            folder = os.open(self.path, _FOLDER)
            opened.callback(os.close, folder)
            if _identity(os.fstat(folder)) != self.identity:
                raise OSError(errno.ESTALE, "another folder has taken its place", str(self.path))
            for name in between:
                folder = os.open(_entry(folder, name), _FOLDER, dir_fd=folder)
                opened.callback(os.close, folder)
            return open_regular(_entry(folder, last), os.O_NOFOLLOW, folder)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _entry(folder: int, name: str) -> str:
    """Return a name that is one of an open folder's entries, so it is no path, nor `..`."""
    if name not in os.listdir(folder):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
    return name
