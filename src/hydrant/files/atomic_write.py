"""Write a file as a whole: after a kill, the path holds either the old content or the new one."""

import contextlib
import errno
import fcntl
import json
import math
import os
import shutil
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import IO, Any

from hydrant.errors import naming
from hydrant.files.redaction import redacted


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

    What a kill leaves of it, the next write of the same file replaces. Its name is fixed, so processes that may write
    one file at the same time need a lock.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with naming(path):
            temporary.unlink(missing_ok=True)  # left by a process that was killed, or planted
            with temporary.open("xb") as file:  # never the file that a link names
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


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
