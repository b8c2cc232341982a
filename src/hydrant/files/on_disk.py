"""Files on disk. Write one as a whole: after a kill, the path holds either the old content or the new one.

Those of a user: folders and links, texts by any editor, tables as CSV, digests, and how many may be open.
"""

import csv
import errno
import fcntl
import hashlib
import io
import json
import math
import os
import resource
import shutil
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from hydrant.errors import first_line, naming
from hydrant.files.redaction import public, redacted


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


@contextmanager
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
        with suppress(OSError):
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


@contextmanager
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


def visible_files(folder: Path, is_meant: Callable[[str], bool]) -> Iterator[str]:
    """Yield the paths of the files in a folder and below that are meant, also where links lead, but no hidden ones.

    A folder to which links lead again is read once. A file is hidden if its name, or that of a folder below `folder`,
    begins with a dot, as in `.git`.

    Args:
        is_meant: whether a path is one of a file to read.
    """
    seen = set[str]()
    for root, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        real = os.path.realpath(root)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        paths = (f"{root}{os.sep}{name}" for name in names)
        yield from (path for path in paths if f"{os.sep}." not in path[len(str(folder)) :] and is_meant(path))


_REASON = "it is a pipe, a socket or a device, but a file is needed"


def check_regular(file: str | Path) -> None:
    """Check that a path is no pipe, socket or device, because opening one may wait for ever.

    Raises:
        OSError: it is one, or there is nothing.
    """
    mode = os.stat(file).st_mode  # noqa: PTH116  # half of the time of Path.stat, for each image
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(_REASON)


def open_regular(file: str | Path, flags: int = 0, dir_fd: int | None = None) -> BinaryIO:
    """Open a file for reading, without waiting if it has just become a pipe.

    Args:
        flags: more flags of `os.open`.
        dir_fd: the open folder of the file; None if `file` is its path.

    Raises:
        OSError: it is no file, or it cannot be opened.
    """
    opened = os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | flags, dir_fd=dir_fd), "rb")
    if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        opened.close()
        raise OSError(_REASON)
    return opened


def raise_limit() -> int:
    """Let this process open as many files as the system allows, and return how many those are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):  # the kernel may allow fewer by now (fs.nr_open)
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard if hard != resource.RLIM_INFINITY else 2**20


def read_marked(file: Path, errors: str = "strict") -> str:
    """Return the text of a file in UTF-8 without byte order marks. Programs that join files leave several of them.

    Raises:
        OSError: it cannot be read.
        UnicodeDecodeError: it is not UTF-8, and `errors` is `strict`.
    """
    return file.read_text(encoding="utf-8", errors=errors).lstrip("\ufeff")


def encoding_error(file: Path) -> str:
    """Return the message about a file that is not in UTF-8, with the line: the error of a part of it knows none."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                return f"{file}: line {number}{first_line(error).removeprefix('line 1')}"
    return f"{file} has changed while it was read"


_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_csv(rows: Iterable[Sequence[Any]], end: str = "\r\n") -> str:
    """Return rows as CSV. A text that a spreadsheet would run as a formula gets a quote in front of it.

    >>> as_csv([["run", "loss"], ["=HYPERLINK(1)", -0.5], ["-1e-3", "-"]], end=" ")
    "run,loss '=HYPERLINK(1),-0.5 -1e-3,- "
    """
    text, cells = io.StringIO(), _Cells()
    writer = csv.writer(text, lineterminator=end)
    writer.writerows([cells[value] if isinstance(value, str) else value for value in row] for row in rows)
    return text.getvalue()


class _Cells(dict[str, str]):
    """The cells of texts. Each text is searched for secrets once: names of classes are in many rows."""

    def __missing__(self, text: str) -> str:
        is_formula = text.startswith(_FORMULA) and text != "-" and not is_number(text)
        self[text] = cell = public(f"'{text}" if is_formula else text)
        return cell


def is_number(text: str) -> bool:
    """Return whether a cell is a number. NaN is a word for none, and only Python reads one with `_`."""
    try:
        return not math.isnan(float(text)) and "_" not in text
    except ValueError:
        return False


SMALL = 16 * 2**20
"""Bytes: a file of this size is hashed as a whole."""
BLOCK_BYTES = 4096
_SAMPLED_BLOCKS = 16
_MAX_FILES = 16


def block_starts(size: int) -> Sequence[int]:
    """Return where the blocks begin that are hashed of a file: one if it is small, else some that are spread evenly."""
    if size <= SMALL:
        return [0]
    return [number * (size - BLOCK_BYTES) // (_SAMPLED_BLOCKS - 1) for number in range(_SAMPLED_BLOCKS)]


def digest_of(files: Sequence[Path]) -> str:
    """Return a digest of the sizes and contents of files. Of a large file it reads some blocks.

    Raises:
        OSError: one cannot be read.
    """
    digest = hashlib.sha256()
    for path in files:
        with open_regular(path) as opened:
            size = opened.seek(0, 2)
            digest.update(f"{size}\n".encode())
            for start in block_starts(size):
                opened.seek(start)
                digest.update(opened.read(SMALL if size <= SMALL else BLOCK_BYTES))
    return digest.hexdigest()[:16]


def split_digests(paths: Mapping[str, Path]) -> dict[str, str]:
    """Return a digest of each split that is a file, or a folder of a few files.

    There is none of a folder of many files, or of what cannot be read, as the data set itself then says.
    """
    digests = dict[str, str]()
    for key, path in paths.items():
        with suppress(OSError):
            if 0 < len(files := _files_of(path)) <= _MAX_FILES:
                digests[key] = digest_of(files)
    return digests


def _files_of(path: Path) -> list[Path]:
    """Return a file, or the files in a folder that are not hidden; none if it has folders."""
    if not path.is_dir():
        return [path]
    files = [file for file in sorted(path.iterdir()) if not file.name.startswith(".")]
    return files if all(file.is_file() for file in files) else []
