"""A lease on a folder, which other machines see too: the file `.lease`, which its owner renews every few seconds.

The lock of lock.py ends with its process, but network file systems may not pass it to other machines, or have no locks.
Even these let only one of several processes create a file. A process that finds a lease watches its content: if it
changes, the owner is alive; if not, the owner has ended without removing it. Times of files are not compared, because
clocks differ and NFS caches these times.
"""

import errno
import os
import platform
import re
import threading
import time
import uuid
from contextlib import suppress
from functools import cache
from pathlib import Path

from hydrant.files.user_files import open_regular
from hydrant.terminal.console import notice

LEASE = ".lease"
_PLAIN_FILE = os.O_NOFOLLOW | os.O_NONBLOCK
"""The flags refuse a link or a pipe under this name, which a folder from elsewhere may hold."""

RENEW_SECONDS = 5.0
POLL_SECONDS = 1.0
LOST_POLLS = 60
"""After this many reads without a renewal, the owner is taken for lost. Reads are counted, not seconds, because a file
server that hangs delays the owner and the reader alike."""
_EMPTY_POLLS = 3
SETTLE_SECONDS = 2.0
"""The seconds that a process waits after it takes over a lease. Then it reads which process took it over last."""


@cache
def this_machine() -> str:
    """Return the identity of this machine and its start. A restart changes it, because it ends all locks."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return platform.node()


class Lease:
    """The lease of this process on a folder; a thread renews it until `release`.

    Raises:
        BlockingIOError: another process holds the lease.
        FileNotFoundError: the folder has been removed.
        OSError: the folder cannot be written.
    """

    def __init__(self, path: Path, folder: int, *, is_alone: bool) -> None:
        """`folder` is the open folder. `is_alone`: it is locked, so another owner on this machine has ended."""
        self._path, self._folder, self._num_renewals = path, folder, 0
        self._owner = f"{this_machine()}\n{uuid.uuid4()}\n{os.getpid()}\n".encode()
        try:
            self._write(os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            if not self._takes_over(is_alone):
                raise BlockingIOError from None
        self.is_lost = False
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Remove the lease, unless another process has it."""
        self._is_over.set()
        self._thread.join()
        with suppress(OSError):
            if self._is_mine():
                os.unlink(LEASE, dir_fd=self._folder)

    def _takes_over(self, is_alone: bool) -> bool:
        """Take the lease of a process that has ended; return whether it had, and no other process was later."""
        content = _read(self._folder)
        if is_alone and _line(content, 0) == this_machine():
            self._write(os.O_TRUNC)
            return True
        if self._is_renewed(content):
            return False
        self._write(os.O_TRUNC)
        time.sleep(SETTLE_SECONDS)  # several machines may have found the same
        return self._is_mine()

    def _is_renewed(self, content: bytes) -> bool:
        """Return whether the owner of a lease renews or removes it, or another process takes it over.

        Print what this process waits for, unless the owner renews it in time.
        """
        num_quiet = int(2 * RENEW_SECONDS / POLL_SECONDS)
        # Without content, its owner is about to write it, or was killed before.
        for num_polls in range(LOST_POLLS if content else _EMPTY_POLLS):
            if num_polls == num_quiet:
                seconds = LOST_POLLS * POLL_SECONDS
                notice(f"{self._path} is taken over after {seconds:.0f} s without a sign of life of its run")
            time.sleep(POLL_SECONDS)
            if _read(self._folder) != content:
                return True
        return False

    def _renew(self) -> None:
        while not self._is_over.wait(RENEW_SECONDS):
            with suppress(OSError):  # the next renewal tries again
                if not self._is_mine():
                    self.is_lost = True
                    return
                self._num_renewals += 1
                self._write(0)

    def _is_mine(self) -> bool:
        return _read(self._folder).startswith(self._owner)

    def _write(self, flags: int) -> None:
        content = self._owner + b"%012d\n" % self._num_renewals
        descriptor = os.open(LEASE, os.O_WRONLY | flags | _PLAIN_FILE, 0o666, dir_fd=self._folder)
        try:
            if os.write(descriptor, content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path / LEASE))
        except OSError:
            if flags & os.O_EXCL:  # the next process would wait for the owner of a lease that nobody holds
                os.unlink(LEASE, dir_fd=self._folder)
            raise
        finally:
            os.close(descriptor)


def leasing_process(folder: Path) -> int | None:
    """Return the process id in the lease on a folder, if it is one of this machine. Anybody may have written it."""
    content = b""
    with suppress(OSError), open_regular(folder / LEASE, os.O_NOFOLLOW) as file:
        content = file.read(4096)
    pid = _line(content, 2)
    return int(pid) if _line(content, 0) == this_machine() and re.fullmatch("[1-9][0-9]{0,8}", pid) else None


def is_recent(folder: Path) -> bool:
    """Return whether a lease was renewed recently, if the clocks of this machine and of the file server agree."""
    with suppress(OSError):
        return time.time() - (folder / LEASE).stat().st_mtime < LOST_POLLS * POLL_SECONDS
    return False


def _line(content: bytes, index: int) -> str:
    """Return a line of a lease: 0 is `this_machine()` of its owner, 2 its process id."""
    lines = content.decode(errors="replace").split("\n")
    return lines[index] if len(lines) > index else ""


def _read(folder: int) -> bytes:
    """Return the content of the lease; nothing if there is none."""
    try:
        with open_regular(LEASE, os.O_NOFOLLOW, dir_fd=folder) as file:
            return file.read(4096)
    except FileNotFoundError:
        return b""
