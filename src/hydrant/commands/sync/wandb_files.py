"""Read and write the files `run-<id>.wandb` in which wandb-core stores runs.

A file is a header and protobuf records in the log format of LevelDB: blocks of 32 KiB with chunks of
(crc32, length, kind), where a record fills one or more chunks.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hydrant.errors import RecordError, first_line
from hydrant.files.read_file import read_bytes
from hydrant.trackers.wandb_media import STAGING

_HEADER = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)  # the 0 is the version
_BLOCK = 32768
_CHUNK = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def read_records(path: Path) -> list[Any]:
    """Return the complete records of a run's file. Arguments and errors are those of `each_record`."""
    return list(each_record(path))


def each_record(path: Path) -> Iterator[Any]:
    """Yield the complete records of a run's file, up to one that a kill has truncated; none of an empty file.

    Raises:
        RecordError: the file is damaged, or has the format of another version of W&B.
    """
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2

    data = read_bytes(path) or b""
    if data and not data.startswith(_HEADER):
        raise RecordError(f"{path} does not have the format of W&B 0.31; `wandb sync` may read it")
    for content in _contents(data):
        record: Any = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
        try:
            record.ParseFromString(content)
        except DecodeError as error:
            raise RecordError(f"{path} is damaged ({first_line(error)})") from error
        yield record


def write_records(path: Path, records: Iterable[Any]) -> None:
    """Write records as a run's file."""
    data = bytearray(_HEADER)
    for record in records:
        content = memoryview(record.SerializeToString())
        is_first = True
        while is_first or content:
            room = _BLOCK - len(data) % _BLOCK
            if room < _CHUNK.size:
                data += bytes(room)
                continue
            part, content = content[: room - _CHUNK.size], content[room - _CHUNK.size :]
            kind = (_FIRST if content else _FULL) if is_first else (_MIDDLE if content else _LAST)
            is_first = False
            data += _CHUNK.pack(zlib.crc32(part, zlib.crc32(bytes([kind]))), len(part), kind) + part
    path.write_bytes(data)


def _contents(data: bytes) -> Iterable[bytes]:
    position, content = len(_HEADER), b""
    while True:
        room = _BLOCK - position % _BLOCK
        if room < _CHUNK.size:
            position += room
            continue
        if position + _CHUNK.size > len(data):
            return
        crc, length, kind = _CHUNK.unpack_from(data, position)
        position += _CHUNK.size
        part = data[position : position + length]
        position += length
        if len(part) < length or not _FULL <= kind <= _LAST:
            return
        if zlib.crc32(part, zlib.crc32(bytes([kind]))) != crc:
            return
        content = part if kind in (_FULL, _FIRST) else content + part
        if kind in (_FULL, _LAST):
            yield content


def remaining_records(records: Iterable[Any], num_sent: int, folder: Path) -> list[Any]:
    """Return the records without the first `num_sent` rows of history.

    The paths of artifacts' files are changed to `folder`, because the run folder may have been moved.

    Raises:
        RecordError: a file of an artifact does not exist.
    """
    kept: list[Any] = []
    num_rows = 0
    for record in records:
        if record.WhichOneof("record_type") == "history":
            num_rows += 1
            if num_rows <= num_sent:
                continue
        for entry in record.artifact.manifest.contents:
            _, is_staged, name = entry.local_path.partition(f"/{STAGING}/")
            if is_staged:
                entry.local_path = str(folder / STAGING / name)
                if not Path(entry.local_path).exists():  # wandb-core would report success
                    remedy = "`wandb sync` uploads the rest, and again what was uploaded"
                    raise RecordError(f"{entry.local_path} of an artifact is missing; {remedy}")
        kept.append(record)
    return kept
