"""Locks on folders: exclusive for the process of a run, shared for the processes of a sweep; and probes of them.

A probe also takes the lock, for an instant. So an attempt to lock is repeated for longer than a probe lasts.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Generator
from pathlib import Path

from hydrant.errors import ConfigError

_LOCK_SECONDS = 0.5
"""How long an attempt to lock is repeated: longer than a probe lasts."""
_PROBE_SECONDS = 0.02
"""How long the probe of `is_in_use` is repeated: longer than another probe lasts."""
_POLL_SECONDS = 0.2

_held: set[int] = set()
"""The descriptors of the locks that this process holds."""


def exclusive(folder: Path) -> contextlib.AbstractContextManager[int]:
    """Lock a folder for this process alone. The lock is on the folder itself and ends with the process, also if killed.

    Yields the descriptor: a child process that inherits it holds the lock too.

    Raises:
        ConfigError: another process has locked it.
    """
    return _locked(folder, fcntl.LOCK_EX)


def shared(folder: Path) -> contextlib.AbstractContextManager[int]:
    """Lock a folder together with other processes that share it.

    Raises:
        ConfigError: another process has locked it for itself.
    """
    return _locked(folder, fcntl.LOCK_SH)


@contextlib.contextmanager
def _locked(folder: Path, kind: int) -> Generator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    _held.add(descriptor)
    try:
        if not _lock(descriptor, kind, _LOCK_SECONDS):
            message = f"another process is at work in {folder}; wait for it, or give another name=<folder>"
            raise ConfigError("name", message)
        yield descriptor
    finally:
        _held.remove(descriptor)
        os.close(descriptor)


def is_held(folder: Path) -> bool:
    """Return whether a process of this machine holds the exclusive lock; other machines cannot be probed."""
    return not _is_free(folder, fcntl.LOCK_SH, 0.0)  # probes share their locks


def is_in_use(folder: Path) -> bool:
    """Return whether a process of this machine holds an exclusive or a shared lock."""
    return not _is_free(folder, fcntl.LOCK_EX, _PROBE_SECONDS)


def wait_until_free(folder: Path) -> None:
    """Wait until no process of this machine holds the exclusive lock."""
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
    """Try to lock for this many seconds; return whether it succeeded."""
    limit = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= limit:
                return False
        time.sleep(_PROBE_SECONDS / 4)


def _close_in_fork() -> None:
    """Close inherited locks in a forked process, because a worker that outlives its run would hold the folder."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_close_in_fork)
