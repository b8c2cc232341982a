"""Ask the process that works in the folder of a run or of a sweep to stop, and never another process.

A file names the process, but anybody may have written it, and process ids are used again. So a handle of the process
is opened (a pidfd), then the kernel is asked whether that process holds the lock of the folder, and the signal goes to
the handle. A second request sends no second signal, because a run takes that for "at once": `.stop` in the folder
names the processes that were asked.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Generator, Sequence
from contextlib import suppress
from pathlib import Path

from hydrant.errors import HydrantError
from hydrant.files.atomic_write import locked
from hydrant.runs.lock_holder import locks

ASKED = ".stop"
_MAX_ASKED = 20  # of the processes that were asked before
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
        OSError: `.stop` cannot be written.
    """
    with _handle(pid) as handle:
        if handle is None or pid == os.getpid() or not locks(pid, folder):
            return None
        try:
            with _asked(folder, process := f"{pid} {_started(pid)}") as is_first:
                if is_first:
                    signal.pidfd_send_signal(handle, signal.SIGTERM)
                # Of signals that are pending together the lower number comes first, and only a later SIGINT is urgent.
                if now and not (is_first and _has_ended(handle, _BETWEEN_SECONDS)):
                    signal.pidfd_send_signal(handle, signal.SIGINT)
        except ProcessLookupError:  # it has just ended
            return True
        except PermissionError as error:
            if error.filename is not None:  # of `.stop`
                raise
            raise CannotStop(f"process {pid} belongs to another user; ask that user to stop it") from error
        has_ended = _has_ended(handle, seconds)
    if has_ended:
        with suppress(OSError), locked(folder / ASKED) as descriptor:
            others = [other for other in _asked_before(descriptor) if other != process]
            _write_asked(descriptor, others)
            if not others:  # else another process of a sweep still saves
                (folder / ASKED).unlink()
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


@contextlib.contextmanager
def _asked(folder: Path, process: str) -> Generator[bool]:
    """Yield whether a process has not been asked before. Others that ask wait until the block ends."""
    with locked(folder / ASKED) as descriptor:
        asked = _asked_before(descriptor)
        if is_first := process not in asked:
            _write_asked(descriptor, [*asked[-_MAX_ASKED:], process])
        yield is_first


def _asked_before(descriptor: int) -> list[str]:
    return os.pread(descriptor, 4096, 0).decode(errors="replace").splitlines()


def _write_asked(descriptor: int, processes: Sequence[str]) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, "\n".join(processes).encode(), 0)


def _started(pid: int) -> str:
    """Return when a process started, in ticks of the kernel's clock: a later process with the same id has another."""
    with suppress(OSError, IndexError):
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[19]
    return ""
