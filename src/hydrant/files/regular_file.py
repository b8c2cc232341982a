"""Refuse what is no file before it is opened. Training imports this module, so it imports no YAML."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def check_regular(file: str | Path) -> None:
    """Check that a path is no pipe, socket or device, because opening one may wait for ever.

    Raises:
        OSError: it is one, or there is nothing.
    """
    mode = os.stat(file).st_mode  # noqa: PTH116  # half of the time of Path.stat, for each image
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError("it is a pipe, a socket or a device, but a file is needed")
