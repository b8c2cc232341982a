"""One process at a time in a run folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path

from hydrant.errors import ConfigError

_held: set[int] = set()


@contextlib.contextmanager
def exclusive(folder: Path) -> Generator[int]:
    """Hold a folder. The lock is on the folder itself and ends with this process, however it ends.

    A process that inherits the descriptor which this gives holds it too.

    Raises:
        ConfigError: another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigError(
            "name", f"another process is at work in {folder}; wait for it, or give this run another name"
        ) from None
    _held.add(descriptor)
    try:
        yield descriptor
    finally:
        _held.remove(descriptor)
        os.close(descriptor)


def _let_go() -> None:
    """In a fork: a worker that outlives its run would hold the folder."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_let_go)
