"""Start several processes in one folder at once, as on one machine, or as on several machines with one disk."""

import errno
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from processes import fork, wait_for_fork

from hydrant.runs import lock

FILE_SYSTEMS = ("one machine", "several machines", "no locks")
"""What the processes share.

one machine: a file system with locks.
several machines: a file system like NFS, where `flock` on a folder does not reach other machines. Each process is a
    machine of its own: its `flock` always succeeds, and it has another machine id.
no locks: a file system like Lustre without the option flock. `flock` raises ENOTSUP; all processes are on one machine.

All three are the disk of this machine: it shows a new file to all processes at once, and so does NFS for files that are
opened. What NFS may delay, the times and the lists of files, is not simulated, and the lease does not use it.
"""

RENEW_SECONDS, POLL_SECONDS, LOST_POLLS, SETTLE_SECONDS = 0.05, 0.05, 40, 0.3
"""Of the leases in these processes: shorter than in real ones."""


class Ended(NamedTuple):
    status: int
    output: str


def simulate(file_system: str) -> None:
    """Let this process see a file system, for the rest of its life."""
    lock.RENEW_SECONDS, lock.POLL_SECONDS = RENEW_SECONDS, POLL_SECONDS
    lock.LOST_POLLS, lock.SETTLE_SECONDS = LOST_POLLS, SETTLE_SECONDS
    if file_system == "several machines":
        machine = f"machine of {os.getpid()}"
        lock.this_machine = lambda: machine
        lock.fcntl.flock = lambda *_: None
    if file_system == "no locks":
        lock.fcntl.flock = _unsupported


def _unsupported(*_: object) -> None:
    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


def start_all(
    starts: Sequence[Callable[[], int]], delays: Sequence[float], file_system: str, outputs: Path
) -> list[Ended]:
    """Call each function in a forked process after its delay; return its result and what it has printed."""
    files = [outputs / f"start_{number}" for number in range(len(starts))]
    pids = [_fork(*each, file_system) for each in zip(starts, delays, files, strict=True)]
    statuses = [wait_for_fork(pid) for pid in pids]
    return [Ended(status, file.read_text()) for status, file in zip(statuses, files, strict=True)]


def _fork(start: Callable[[], int], delay: float, output: Path, file_system: str) -> int:
    begun = time.monotonic()

    def start_delayed() -> int:
        simulate(file_system)
        time.sleep(max(0.0, begun + delay - time.monotonic()))
        return start()

    return fork(start_delayed, output)
