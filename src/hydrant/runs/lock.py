"""Locks on folders: exclusive for the process of a run, shared for the processes of a sweep; and probes of them.

An exclusive lock also holds a lease, which other machines see: the file `.lease`, which its owner renews every few
seconds. So the folder is not empty, and cleaning up empty folders never removes one in use. The lock ends with its
process, but network file systems may not pass it to other machines, or have no locks. Even these let only one of
several processes create a file. A process that finds a lease watches its content: if it changes, the owner is alive; if
not, the owner has ended without removing it. Times of files are not compared, because clocks differ.

A probe takes the lock for an instant. So an attempt to lock is repeated for longer than a probe lasts.
"""

import errno
import fcntl
import math
import os
import platform
import re
import threading
import time
import uuid
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hydrant.errors import ConfigError, FolderInUse, FolderLost, why_no_folder
from hydrant.files.on_disk import open_regular
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
        FolderInUse: another process holds the lease.
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
                raise _in_use(path) from None
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


_PROC = Path("/proc")  # of Linux; elsewhere no process is found


def locking_process(folder: Path) -> int | None:
    """Return the process of this machine that a folder's lease names, if it has the lock of the folder."""
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


OTHER_FOLDER = "name=<folder> (in Python also folder=...)"
"""How to choose another run folder, for messages."""
_LOCK_SECONDS = 0.5
"""How long an attempt to lock is repeated: longer than a probe lasts."""
_PROBE_SECONDS = 0.02
"""How long the probe of `is_in_use` is repeated: longer than another probe lasts."""
_POLL_SECONDS = 0.2
_ATTEMPTS = 100
"""How often a folder is made again while other processes remove it."""
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
"""The errors of file systems without locks."""
_GONE = (errno.ENOENT, errno.EEXIST, errno.ESTALE)
"""The errors while another process makes and removes a folder."""
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


@dataclass
class _Held:
    """A lock that this process holds."""

    descriptor: int
    status: os.stat_result
    """The status of the folder when it was opened."""
    lease: Lease | None = None


_held: dict[int, _Held] = {}
"""The locks that this process holds, by their descriptors. Threads of several runs read and change it."""


def exclusive(folder: Path) -> AbstractContextManager[int]:
    """Lock a folder for this process alone; make it if it is missing. The lock ends with the process, also if killed.

    Yields the descriptor: a child process that inherits it holds the lock too.

    Raises:
        FolderInUse: another process has locked it.
        ConfigError: it cannot be locked.
    """
    return _locked(folder, fcntl.LOCK_EX)


def shared(folder: Path) -> AbstractContextManager[int]:
    """Lock a folder together with other processes that share it; make it if it is missing.

    Raises:
        FolderInUse: another process has locked it for itself.
    """
    return _locked(folder, fcntl.LOCK_SH)


@contextmanager
def _locked(folder: Path, kind: int) -> Generator[int]:
    for attempts_left in reversed(range(_ATTEMPTS)):
        with ExitStack() as stack:
            try:
                descriptor = _lock_folder(folder, kind, stack)
            except OSError as error:
                if error.errno in _GONE and attempts_left:
                    continue
                is_made = folder.is_dir()
                reason = f"{folder} cannot be locked ({error})" if is_made else why_no_folder(folder, error)
                raise ConfigError("name", reason, remedy=f"give another {OTHER_FOLDER}") from error
            if _held_at(folder, [_held[descriptor]]) is not None:  # else it was replaced meanwhile
                yield descriptor
                return
    raise ConfigError("name", f"{folder} is removed again and again", remedy=f"give another {OTHER_FOLDER}")


def _lock_folder(folder: Path, kind: int, stack: ExitStack) -> int:
    """Open and lock a folder, and take the lease of an exclusive lock; `stack` undoes it. Return the descriptor."""
    if not folder.exists():
        folder.mkdir(parents=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    _held[descriptor] = held = _Held(descriptor, os.fstat(descriptor))
    stack.callback(_release, descriptor)
    try:
        locked = _lock(descriptor, kind, _LOCK_SECONDS)
        if locked is False:
            raise _in_use(folder)
        if locked is None:
            note_no_lock(folder.parent, "the file system has no locks", "leases alone keep others out")
        if kind == fcntl.LOCK_EX:
            held.lease = Lease(folder, descriptor, is_alone=locked is True)
    except OSError as error:
        if error.errno not in _READ_ONLY or os.access(folder, os.W_OK):
            raise
        # Without permission to write, a run cannot train here; a finished run is only read and needs no lease.
    return descriptor


def _in_use(folder: Path) -> FolderInUse:
    message = f"another process is at work in {folder}"
    return FolderInUse("name", message, remedy=f"wait for it, or give another {OTHER_FOLDER}")


def _release(descriptor: int) -> None:
    if (lease := _held.pop(descriptor).lease) is not None:
        lease.release()
    os.close(descriptor)


def check_held(folder: Path) -> None:
    """Check that this process has still locked the folder at this path.

    Raises:
        FolderLost: it was removed or replaced, or another machine has taken it over.
    """
    if (held := _held_at(folder, list(_held.values()))) is not None:
        if held.lease is None or not held.lease.is_lost:
            return
        message = f"{folder} was taken over by another process, because this one did not answer in time"
        raise FolderLost(message)
    raise FolderLost(f"{folder} was removed or replaced while the run trained; the same command starts again")


def is_held(folder: Path) -> bool:
    """Return whether a process of this machine holds the exclusive lock; other machines cannot be probed."""
    return not _is_free(folder, fcntl.LOCK_SH, 0.0)  # probes share their locks


def is_in_use(folder: Path) -> bool:
    """Return whether a process of this machine holds an exclusive or a shared lock."""
    return not _is_free(folder, fcntl.LOCK_EX, _PROBE_SECONDS)


def wait_until_free(folders: Sequence[Path], patience: float = math.inf) -> list[Path]:
    """Wait until no folder `is_held`; return the free ones.

    Args:
        folders: one or more.
        patience: after this many seconds, one free folder is enough.
    """
    deadline = time.monotonic() + patience
    while True:
        free = [folder for folder in folders if not is_held(folder)]
        if len(free) == len(folders) or (free and time.monotonic() > deadline):
            return free
        time.sleep(_POLL_SECONDS)


@cache
def note_no_lock(path: Path, reason: str, consequence: str) -> None:
    """Print, once in this process, why something is not locked and what follows."""
    notice(f"{path} is not locked ({reason}): {consequence}")


def _held_at(folder: Path, locks: Sequence[_Held]) -> _Held | None:
    """Return which of these locks is on the folder at a path; None if none is."""
    try:
        status = folder.stat()
        held = next((held for held in locks if os.path.samestat(status, held.status)), None)
        if held is None:
            return None
        # On a network drive, a new folder may have the number of the removed one, which is open here.
        return held if os.path.samestat(status, os.fstat(held.descriptor)) else None
    except OSError as error:  # a disk that fails says nothing
        is_gone = error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.EBADF)
        return None if is_gone else next(iter(locks), None)


def _is_free(folder: Path, kind: int, seconds: float) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # a pipe would wait for its writer
    except OSError:  # there is no such folder
        return True
    try:
        locked = _lock(descriptor, kind, seconds)
        return not is_recent(folder) if locked is None else locked
    finally:
        os.close(descriptor)


def _lock(descriptor: int, kind: int, seconds: float) -> bool | None:
    """Try to lock for this many seconds; return whether it succeeded, None if the file system has no locks."""
    limit = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= limit:
                return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return None
        time.sleep(_PROBE_SECONDS / 4)


def _close_in_fork() -> None:
    """Close inherited locks in a forked process, because a worker that outlives its run would hold the folder."""
    while _held:
        os.close(_held.popitem()[0])


os.register_at_fork(after_in_child=_close_in_fork)
