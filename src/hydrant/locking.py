"""One process at a time in a run folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from pathlib import Path

from hydrant.errors import ConfigError


@contextlib.contextmanager
def exclusive(folder: Path) -> Generator[None]:
    """Hold a folder. The lock is on the folder itself and ends with the process, however it ends.

    Raises:
        ConfigError: another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ConfigError(
            "name", f"another process is training in {folder}; wait for it, or give this run another name"
        ) from None
    finally:
        os.close(descriptor)
