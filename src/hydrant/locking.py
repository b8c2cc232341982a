"""One process at a time in a run folder, and who looks whether there is one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Generator
from pathlib import Path

from hydrant.errors import ConfigError

_LOOK_SECONDS = 0.5
"""Who only looks has a folder for less than that."""
_POLL_SECONDS = 0.2

_held: set[int] = set()


@contextlib.contextmanager
def exclusive(folder: Path) -> Generator[int]:
    """Hold a folder. The lock is on the folder itself and ends with this process, however it ends.

    A process that inherits the descriptor which this gives holds it too.

    Raises:
        ConfigError: another process holds it.
    """
    with marked(folder) as descriptor:
        if descriptor is None:
            told = f"another process is at work in {folder}; wait for it, or give this run another name"
            raise ConfigError("name", told)
        yield descriptor


@contextlib.contextmanager
def marked(folder: Path) -> Generator[int | None]:
    """Hold a folder, by the descriptor that this gives; None where another process does."""
    descriptor = os.open(folder, os.O_RDONLY)
    limit = time.monotonic() + _LOOK_SECONDS
    while not (is_locked := _lock(descriptor, fcntl.LOCK_EX)) and time.monotonic() < limit:
        time.sleep(_LOOK_SECONDS / 10)
    _held.add(descriptor)
    try:
        yield descriptor if is_locked else None
    finally:
        _held.remove(descriptor)
        os.close(descriptor)


def is_held(folder: Path) -> bool:
    """Whether a process of this machine holds a folder; of one on another machine nothing is known."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _lock(descriptor, fcntl.LOCK_SH)  # which any number may have at once
    finally:
        os.close(descriptor)


def wait_until_free(folder: Path) -> None:
    """Until no process of this machine holds a folder."""
    while is_held(folder):
        time.sleep(_POLL_SECONDS)


def _lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _let_go() -> None:
    """In a fork: a worker that outlives its run would hold the folder."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)
