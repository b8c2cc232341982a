"""A file that a run keeps mapped into memory: whether another program has changed it since."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any

from hydrant.errors import DataError, log


class WatchedFile:
    """A file whose size is checked before its map is read. Reading what was cut off kills the process (SIGBUS).

    Args:
        path: of the file.
        size: the bytes that are mapped.

    Raises:
        DataError: it is shorter.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path, self._size = path, size
        # Not by its path, under which there may be another file now.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        self._written = os.fstat(self._descriptor).st_mtime_ns
        self.check()

    def __reduce__(self) -> tuple[Any, ...]:
        return WatchedFile, (self._path, self._size)

    def check(self) -> None:
        """Check that the file is as long as it was; warn once if it was written. Takes less than a microsecond.

        Raises:
            DataError: it is shorter.
        """
        found = os.fstat(self._descriptor)
        if found.st_size < self._size:
            message = (
                f"{self._path} has become shorter while this run reads it: {found.st_size:,} bytes instead of"
            )
            raise DataError(f"{message} {self._size:,}", remedy="restore the file, and start again")
        if found.st_mtime_ns != self._written:
            self._written = found.st_mtime_ns
            log.warning("%s was written while this run reads it: later samples may be others", self._path)
