"""The predictions so far, in a file that the same command continues after a kill.

The first line is a JSON object that tells what is predicted. A record for each batch follows: its length in 8 bytes,
and an .npz file.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import zipfile
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from hydrant.errors import ConfigError, FolderInUse
from hydrant.files.atomic_write import open_beside
from hydrant.runs.lock import note_no_lock
from hydrant.runs.prediction.npz import read_arrays, write_arrays
from hydrant.terminal.console import notice, relative
from hydrant.training.prediction import NUMBERS, Arrays

_LENGTH_BYTES = 8
_MAX_HEAD_BYTES = 10_000


class PartialFile:
    """The records of a file that only this process writes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._start = 0  # of the first record
        self._shapes: dict[str, Any] = {}
        self.num_rows = 0
        self.last: Arrays = {}  # the last record

    @classmethod
    @contextlib.contextmanager
    def open(cls, path: Path, identity: Mapping[str, Any]) -> Generator[PartialFile]:
        """Open a file, or make it, and keep its whole records if they are of the same predictions.

        Raises:
            ConfigError: it is not a file of predictions.
            FolderInUse: another process is writing it.
            OSError: it cannot be written.
        """
        with os.fdopen(open_beside(path, os.O_RDWR | os.O_CREAT | os.O_APPEND), "a+b") as file:
            _lock(file, path)
            partial = cls(file)
            partial._continue(path, identity)
            yield partial

    @property
    def next_number(self) -> int:
        """The number of the next sample."""
        return int(self.last[NUMBERS][-1]) + 1 if self.last else 0

    def append(self, arrays: Arrays) -> None:
        """Add the arrays of a batch.

        Raises:
            ConfigError: their types or shapes differ from those of earlier batches.
        """
        self._check(arrays)
        content = io.BytesIO()
        write_arrays(content, arrays)
        self._file.write(len(content.getbuffer()).to_bytes(_LENGTH_BYTES, "little"))
        self._file.write(content.getbuffer())
        self._file.flush()
        self._count(arrays)

    def records(self) -> Iterator[Arrays]:
        """Yield the arrays of each batch."""
        self._file.seek(self._start)
        while length := int.from_bytes(self._file.read(_LENGTH_BYTES), "little"):
            end = self._file.tell() + length
            yield read_arrays(io.BytesIO(self._file.read(length)))
            self._file.seek(end)

    def _continue(self, path: Path, identity: Mapping[str, Any]) -> None:
        """Read the records of the file, and remove incomplete ones and those of other predictions."""
        self._file.seek(0)
        head = self._file.readline(_MAX_HEAD_BYTES)
        expected = (json.dumps(identity) + "\n").encode()
        self._start = len(expected)
        if head == expected:
            with contextlib.suppress(ValueError, OSError, KeyError, zipfile.BadZipFile, ConfigError):
                self._read_whole_records()
                return
            notice(f"{relative(path)} is damaged; starting again")
        elif not expected.startswith(head):  # else it was killed before the first record
            other = _difference(head, identity, path)
            notice(f"{relative(path)} was made with other {other}; starting again")
        self.num_rows, self.last = 0, {}
        self._file.truncate(0)
        self._file.write(expected)
        self._file.flush()

    def _read_whole_records(self) -> None:
        size, end = os.fstat(self._file.fileno()).st_size, self._start
        self._file.seek(end)
        while end + _LENGTH_BYTES <= size:
            length = int.from_bytes(self._file.read(_LENGTH_BYTES), "little")
            if not length or end + _LENGTH_BYTES + length > size:
                break
            arrays = read_arrays(io.BytesIO(self._file.read(length)))
            _check_rows(arrays, self.next_number)
            self._check(arrays)
            self._count(arrays)
            end += _LENGTH_BYTES + length
        self._file.truncate(end)

    def _count(self, arrays: Arrays) -> None:
        self.num_rows += len(arrays[NUMBERS])
        self.last = arrays

    def _check(self, arrays: Arrays) -> None:
        for name in self.last.keys() | arrays.keys() if self.last else ():
            shapes = [
                f"{part[name].dtype} {list(part[name].shape[1:])}" if name in part else "missing"
                for part in (self.last, arrays)
            ]
            if shapes[0] != shapes[1]:
                message = f"{name!r} of a sample is {shapes[0]} in one batch and {shapes[1]} in the next"
                raise ConfigError("task", f"{message}; pad all samples to one length")


def _check_rows(arrays: Arrays, next_number: int) -> None:
    """Refuse a record unless it has one row per sample, and its samples come after those of the earlier records.

    Raises:
        ValueError, KeyError: it was damaged or forged.
    """
    numbers = arrays[NUMBERS]
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1 or not len(numbers):
        raise ValueError("no numbers of samples")
    if any(array.ndim == 0 or len(array) != len(numbers) for array in arrays.values()):
        raise ValueError("another number of rows")
    if numbers[0] < next_number or np.any(numbers[1:] <= numbers[:-1]):
        raise ValueError("a sample is there twice")


def _lock(file: IO[bytes], path: Path) -> None:
    is_locked = True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        is_locked = False
    except OSError as error:
        note_no_lock(path, error.strerror or str(error), "start no other process that writes it")
        return
    if not is_locked or not os.fstat(file.fileno()).st_nlink:  # the other process has just finished
        raise FolderInUse("--out", f"another process is writing {relative(path)}", remedy="give another file")


def _difference(head: bytes, identity: Mapping[str, Any], path: Path) -> str:
    """Return which parts of the identity of a file differ.

    Raises:
        ConfigError: the file does not begin with an identity, so it is not a file of predictions.
    """
    found: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(head)
    if not isinstance(found, dict) or cast(dict[str, Any], found).keys() != identity.keys():
        message = f"{relative(path)}, the place of unfinished predictions, is a file of something else"
        raise ConfigError("--out", message, remedy="move it, or give another file")
    return " and ".join(name for name, value in identity.items() if found[name] != value) or "form"
