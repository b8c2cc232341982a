"""Who is at work in a folder: one process alone, as in a run's, or several, as in a sweep's; and who only looks."""

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
_MEETING_SECONDS = 0.02
"""Two who look meet for less than that."""
_POLL_SECONDS = 0.2

_held: set[int] = set()


@contextlib.contextmanager
def exclusive(folder: Path) -> Generator[int]:
    """Hold a folder alone. The lock is on the folder itself and ends with this process, however it ends.

    A process that inherits the descriptor which this gives holds it too.

    Raises:
        ConfigError: another process holds it.
    """
    with _locked(folder, fcntl.LOCK_EX) as descriptor:
        yield descriptor


@contextlib.contextmanager
def shared(folder: Path) -> Generator[None]:
    """Hold a folder beside others that share it.

    Raises:
        ConfigError: another process holds it alone.
    """
    with _locked(folder, fcntl.LOCK_SH):
        yield


@contextlib.contextmanager
def _locked(folder: Path, kind: int) -> Generator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    _held.add(descriptor)
    try:
        if not _lock(descriptor, kind, _LOOK_SECONDS):
            told = f"another process is at work in {folder}; wait for it, or give another name=<folder>"
            raise ConfigError("name", told)
        yield descriptor
    finally:
        _held.remove(descriptor)
        os.close(descriptor)


def is_held(folder: Path) -> bool:
    """Whether a process of this machine holds a folder alone; of one on another machine nothing is known."""
    return not _is_free(folder, fcntl.LOCK_SH, 0.0)  # which any number who look may have at once


def is_in_use(folder: Path) -> bool:
    """Whether a process of this machine holds a folder, alone or beside others."""
    return not _is_free(folder, fcntl.LOCK_EX, _MEETING_SECONDS)


def wait_until_free(folder: Path) -> None:
    """Until no process of this machine holds a folder."""
    while is_held(folder):
        time.sleep(_POLL_SECONDS)


def _is_free(folder: Path, kind: int, seconds: float) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        return _lock(descriptor, kind, seconds)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, kind: int, seconds: float) -> bool:
    """Whether a lock is had, tried for so many seconds."""
    limit = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= limit:
                return False
        time.sleep(_MEETING_SECONDS / 4)


def _let_go() -> None:
    """In a fork: a worker that outlives its run would hold the folder."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)
