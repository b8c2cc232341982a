"""Observe what processes write: every file that is opened for writing, renamed, removed or flushed to disk."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PATHS = {"open": (0, None), "os.mkdir": (0, 2), "os.rename": (1, 3), "os.remove": (0, 1), "os.rmdir": (0, 1),
          "os.symlink": (1, 2), "os.link": (1, 3), "os.truncate": (0, None)}  # fmt: skip
"""Events of Python's audit hooks: the positions of the path and of the folder's descriptor in their arguments."""

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def observe_writes(root: Path, callback: Callable[[str, Path], None]) -> None:
    """Call `callback(event, path)` before each write under `root`, in this process and in those it forks.

    An audit hook cannot be removed, so call this in a process of its own. The bytes that an open file receives cause no
    event; they are there at the next one, at the latest when the file is flushed to disk.
    """
    prefix = f"{root.resolve()}/"

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        path = _written(event, arguments)
        if path is not None and f"{path}/".startswith(prefix):
            callback(event, path)

    fsync = os.fsync

    def observed_fsync(descriptor: int) -> None:
        path = _path_of(descriptor)
        if f"{path}/".startswith(prefix):
            callback("os.fsync", path)
        fsync(descriptor)

    os.fsync = observed_fsync
    sys.addaudithook(hook)


def _written(event: str, arguments: tuple[Any, ...]) -> Path | None:
    """Return the path that an event writes; None if it writes none."""
    if event not in _PATHS or (event == "open" and not arguments[2] & _WRITING):
        return None
    path_idx, descriptor_idx = _PATHS[event]
    path = arguments[path_idx]
    if isinstance(path, int):
        return None
    descriptor = -1 if descriptor_idx is None else arguments[descriptor_idx]
    return (Path.cwd() if descriptor == -1 else _path_of(descriptor)) / os.fsdecode(path)


def _path_of(descriptor: int) -> Path:
    return Path(f"/proc/self/fd/{descriptor}").readlink()
