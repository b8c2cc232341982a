"""Ask the process that works in the folder of a run or of a sweep to stop, and never another process.

A file names the process, but anybody may have written it, and process ids are used again. So a handle of the process
is opened (a pidfd), then the kernel is asked whether that process holds the lock of the folder, and the signal goes to
the handle. A second request sends no second signal, because a run takes that for "at once": a file in the folder such
as `.stop.1234.56789` says that this process was asked.
"""

import contextlib
import os
import select
import signal
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

from hydrant.errors import HydrantError
from hydrant.runs.lock import locks

ASKED = ".stop"
_BETWEEN_SECONDS = 0.5  # in which a process takes the first signal


class CannotStop(HydrantError):
    """The process cannot be asked to stop from here."""


def ask_to_stop(folder: Path, pid: int, *, now: bool, seconds: float) -> bool | None:
    """Ask a process that has locked a folder to save and end, and wait; return whether it has ended.

    Returns None if that process does not lock the folder, any more or at all: nothing is sent.

    Args:
        now: it ends at once, without saving.
        seconds: how long to wait.

    Raises:
        CannotStop: this machine or the user may not signal the process.
        OSError: the folder cannot be written.
    """
    is_first = False
    with _handle(pid) as handle:
        if handle is None or pid == os.getpid() or not locks(pid, folder):
            return None
        asked = folder / f"{ASKED}.{pid}.{_started(pid)}"
        with suppress(FileExistsError):
            asked.touch(exist_ok=False)
            is_first = True
        try:
            if is_first:
                signal.pidfd_send_signal(handle, signal.SIGTERM)
            # Of signals that are pending together the lower number comes first, and only a later SIGINT is urgent.
            if now and not (is_first and _has_ended(handle, _BETWEEN_SECONDS)):
                signal.pidfd_send_signal(handle, signal.SIGINT)
            has_ended = _has_ended(handle, seconds)
        except ProcessLookupError:  # it has just ended
            has_ended = True
        except PermissionError as error:
            asked.unlink()
            raise CannotStop(f"process {pid} belongs to another user; ask that user to stop it") from error
    if has_ended:
        asked.unlink(missing_ok=True)
    return has_ended


def _has_ended(handle: int, seconds: float) -> bool:
    """Wait until a process has ended, these seconds at most; return whether it has."""
    return bool(select.select([handle], [], [], seconds)[0])


@contextlib.contextmanager
def _handle(pid: int) -> Generator[int | None]:
    """Yield a handle of a process, which stays that of this process; None if there is no such process."""
    if not hasattr(os, "pidfd_open"):
        raise CannotStop(f"this system has no handles of processes; stop it by kill -TERM {pid}")
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        yield handle
    finally:
        os.close(handle)


def _started(pid: int) -> str:
    """Return when a process started, in ticks of the kernel's clock: a later process with the same id has another."""
    with suppress(OSError, IndexError):
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[19]
    return ""
