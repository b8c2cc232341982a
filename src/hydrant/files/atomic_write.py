"""Write a file as a whole: after a kill, the path holds either the old content or the new one."""

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import shutil
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import IO, Any

from hydrant.errors import naming
from hydrant.files.redaction import redacted

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.\d+\.tmp")
_MOST_SECONDS = 60
"""Between two changes of a file that a process writes, where no lock tells."""


def write_json(path: Path, value: Any) -> None:
    """Replace a JSON file atomically by `json_text`.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
    """
    replace_file(path, json_text(value))


def json_text(value: Any) -> str:
    """Return the text of a JSON file. Secrets are redacted, NaN and infinity become `null`."""
    return json.dumps(redacted(json_safe(value)), indent=2) + "\n"


def replace_file(path: Path, text: str) -> None:
    """Replace a text file atomically: write a temporary file beside it, flush it to disk, rename it.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
    """
    with replacing(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def replacing(path: Path) -> Generator[IO[bytes]]:
    """Yield a file that takes the place of `path` at the end of the block, on disk. If the block raises, it is removed.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
    """
    remove_temporary(path.parent, path.name)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path), _new_file(temporary) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            temporary.replace(
                path
            )  # while it is locked, so that no other process takes it for one that was left
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _new_file(temporary: Path) -> IO[bytes]:
    """Make a temporary file, which is locked while it is open: the others were left by processes that were killed."""
    while True:
        with contextlib.suppress(FileNotFoundError):  # left by a process of the same number, or planted
            temporary.unlink()
        file = temporary.open("xb")  # never the file that a link names
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.lexists(temporary):  # else another process has removed it before it was locked
            return file
        file.close()


def open_beside(path: Path, flags: int) -> int:
    """Open a file that Hydrant keeps beside those of the user, such as a lock, and return its descriptor.

    Raises:
        OSError: it is no regular file, or a link, which names a file of somebody else; or it cannot be opened.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise FileExistsError(errno.EEXIST, "there is something else than a file of Hydrant", str(path))
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)


@contextlib.contextmanager
def locked(path: Path) -> Generator[int]:
    """Hold the lock of a file, which is made if there is none, and yield its descriptor; wait for who holds it.

    Raises:
        OSError: the file cannot be opened or locked.
    """
    descriptor = open_beside(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def remove_temporary(folder: Path, name: str = "") -> None:
    """Remove the temporary files in a folder that killed processes have left.

    Args:
        name: only those of the file with this name.
    """
    with (
        contextlib.suppress(OSError),
        os.scandir(folder) as entries,
    ):  # writing will say what is wrong with it
        names = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
        for match in filter(None, map(_TEMPORARY.fullmatch, names)):
            if match["name"] == name or not name:
                remove_unlocked(folder / match.string)


def remove_unlocked(temporary: Path) -> None:
    """Remove a temporary file or folder, unless it is locked: a process of any machine is writing it.

    On a file system without locks: a file that has not changed for a minute, and no folder.
    """
    with contextlib.suppress(
        OSError
    ):  # another process removes it too, or it is locked, or not a file of Hydrant
        is_folder = temporary.is_dir()
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(temporary, flags) if is_folder else open_beside(temporary, os.O_RDWR)
        try:
            found = os.fstat(descriptor)
            is_old = not is_folder and time.time() - found.st_mtime > _MOST_SECONDS
            is_left = _can_lock(descriptor) or is_old
            if is_left and os.path.samestat(found, temporary.stat(follow_symlinks=False)):
                remove(temporary)
        finally:
            os.close(descriptor)


def _can_lock(descriptor: int) -> bool:
    """Lock a file; return whether its file system has locks.

    Raises:
        BlockingIOError: a process has locked it.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with its content, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with naming(path):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_safe(value: Any) -> Any:
    """Return `value` with every NaN and infinity replaced by None, because JSON has neither."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {key: json_safe(item) for key, item in value.items()}
        case list() | tuple():
            return [json_safe(item) for item in value]
        case _:
            return value
