"""Runs as wandb-core keeps them on disk: `run-<id>.wandb`, read, and written anew without what was sent before.

A file is a header and protobuf records in the framing of LevelDB's log: blocks of 32 KiB with chunks of
(crc32, length, kind), where a record fills one chunk or goes on over several.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hydrant.errors import RecordError

_HEADER = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)  # the last is the version
_BLOCK = 32768
_CHUNK = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


def read_records(path: Path) -> list[Any]:
    """The whole records of a run's file; what follows one that a kill has torn is left out.

    Raises:
        RecordError: it is of another version of W&B.
    """
    from wandb.proto import wandb_internal_pb2

    data = path.read_bytes()
    if data[: len(_HEADER)] != _HEADER:
        told = "is empty" if not data else "is not of the form that W&B 0.31 writes; wandb sync may read it"
        raise RecordError(f"{path} {told}")
    records: list[Any] = []
    for content in _contents(data):
        record: Any = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
        record.ParseFromString(content)
        records.append(record)
    return records


def write_records(path: Path, records: Iterable[Any]) -> None:
    """Write a run's file."""
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


def remaining(records: Iterable[Any], num_sent: int, folder: Path) -> list[Any]:
    """The records without the first `num_sent` rows of history; files of artifacts where they lie in `folder` now.

    Raises:
        RecordError: they do not.
    """
    from hydrant.trackers.wandb_media import STAGING

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
                if not Path(entry.local_path).exists():  # wandb-core would say that all was sent
                    raise RecordError(
                        f"{entry.local_path} of an artifact is gone; wandb sync sends the rest, and twice what was sent"
                    )
        kept.append(record)
    return kept
