"""Refuse what is no file before it is opened. Training imports this module, so it imports no YAML."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

_REASON = "it is a pipe, a socket or a device, but a file is needed"


def check_regular(file: str | Path) -> None:
    """Check that a path is no pipe, socket or device, because opening one may wait for ever.

    Raises:
        OSError: it is one, or there is nothing.
    """
    mode = os.stat(file).st_mode  # noqa: PTH116  # half of the time of Path.stat, for each image
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(_REASON)


def open_regular(file: str | Path, flags: int = 0, dir_fd: int | None = None) -> BinaryIO:
    """Open a file for reading, without waiting if it has just become a pipe.

    Args:
        flags: more flags of `os.open`.
        dir_fd: the open folder of the file; None if `file` is its path.

    Raises:
        OSError: it is no file, or it cannot be opened.
    """
    opened = os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | flags, dir_fd=dir_fd), "rb")
    if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        opened.close()
        raise OSError(_REASON)
    return opened
