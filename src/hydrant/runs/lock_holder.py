"""Find the process that holds a lock: to stop it, or because to wait for an ancestor is to wait for ever."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hydrant.runs.lease import leasing_process

_PROC = Path("/proc")  # of Linux; elsewhere no ancestor is found


def locking_ancestor(folder: Path) -> int | None:
    """Return the process id of the ancestor of this process that has locked a folder; None if none is found."""
    return next((pid for pid in _ancestors(os.getpid()) if locks(pid, folder)), None)


def locking_process(folder: Path) -> int | None:
    """Return the process of this machine that trains in a folder: the one that its lease names, if it has the lock."""
    pid = leasing_process(folder)
    return pid if pid is not None and locks(pid, folder) else None


def locks(pid: int, folder: Path) -> bool:
    """Return whether a process of this machine has locked a folder; False if it may not be looked at.

    The kernel knows: no file decides it.
    """
    with suppress(OSError):
        status = folder.stat()
        for descriptor in (_PROC / str(pid) / "fd").iterdir():
            with suppress(OSError):  # it may be closed meanwhile
                if os.path.samestat(descriptor.stat(), status):
                    text = (_PROC / str(pid) / "fdinfo" / descriptor.name).read_text()
                    if "\nlock:" in text:
                        return True
    return False


def _ancestors(pid: int) -> Iterator[int]:
    """Yield the process ids of the parent of a process, its parent and so on, as far as they can be read."""
    with suppress(OSError):
        while match := re.search(
            r"^PPid:\s*([1-9]\d*)", (_PROC / str(pid) / "status").read_text(), re.MULTILINE
        ):
            pid = int(match[1])
            yield pid
