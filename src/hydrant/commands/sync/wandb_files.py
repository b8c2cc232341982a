"""Read and write the files `run-<id>.wandb` in which wandb-core stores runs.

A file is a header and protobuf records in the log format of LevelDB: blocks of 32 KiB with chunks of
(crc32, length, kind), where a record fills one or more chunks. Where wandb-core was killed before it had written all
rows, `completed` adds them from metrics.jsonl.
"""

import json
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydrant.errors import RecordError, first_line
from hydrant.files.read_file import read_bytes
from hydrant.runs.record import read_metrics
from hydrant.terminal.console import notice
from hydrant.trackers.wandb import STAGING

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
        raise RecordError(f"{path} does not have the format of W&B 0.31", remedy="`wandb sync` may read it")
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
                    raise RecordError(f"{entry.local_path} of an artifact is missing", remedy=remedy)
        kept.append(record)
    return kept


_KEPT: Mapping[str, Callable[[float, float], float]] = {"last": lambda _, new: new, "min": min, "max": max}
"""What the summary holds of some metrics, as the tracker defines it, made of what it held before and a new value."""


def completed(records: Sequence[Any], part: Path, folder: Path) -> list[Any]:
    """Return the records of a part, with the rows of metrics.jsonl that its process logged and the part lacks.

    A row belongs to the newest part that had begun when the row was logged. Rows that a resumed run has made again are
    not in metrics.jsonl twice, so they are not added.
    """
    try:
        rows = _missing_rows(records, part, folder)
    except RecordError as error:
        notice(f"{error}; rows that a killed run has not written for W&B are not added")
        rows = []
    run_end = next((n for n, record in enumerate(records) if record.HasField("exit")), len(records))
    return [*records[:run_end], *_added(rows, records), *records[run_end:]]


def _missing_rows(records: Sequence[Any], part: Path, folder: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl that a part lacks.

    Raises:
        RecordError: metrics.jsonl or another part is damaged.
    """
    parts = {*folder.glob("wandb/*run-*/run-*.wandb"), *part.parents[1].glob(f"*run-*/{part.name}")}
    others = parts - {part}  # online ones too
    begins = [_begin(each_record(other)) for other in others]
    begin = _begin(records)
    end = min((other for other in begins if other > begin), default=math.inf)
    items = [item for record in records for item in record.history.item]
    logged = {json.loads(item.value_json) for item in items if "time" in (item.key, *item.nested_key)}
    rows = [row for row in read_metrics(folder) if row.get("time") is not None]
    return [row for row in rows if begin <= row["time"] < end and row["time"] not in logged]


def _begin(records: Iterable[Any]) -> float:
    """Return when the process of a part began to log, in unix seconds; infinity if it wrote nothing."""
    starts = (record.run.start_time for record in records if record.HasField("run"))
    return next((start.seconds + start.nanos / 1e9 for start in starts), math.inf)


def _added(rows: Sequence[Mapping[str, Any]], records: Sequence[Any]) -> Iterator[Any]:
    """Yield the records that wandb-core makes of rows which follow those of a part: a summary and history for each."""
    from wandb.proto import wandb_internal_pb2

    first, begin = sum(record.HasField("history") for record in records), _begin(records)
    latest = {
        item.nested_key[0]: json.loads(item.value_json)
        for record in records
        for item in record.summary.update
        if len(item.nested_key) == 1
    }
    for step, row in enumerate(rows, first):
        values = {key: math.nan if value is None else value for key, value in row.items()}
        values |= {"_step": step, "_timestamp": row["time"], "_runtime": row["time"] - begin}
        latest |= {key: _summarized(value, latest.get(key)) for key, value in values.items()}
        summary, history = (wandb_internal_pb2.Record() for _ in range(2))  # type: ignore[attr-defined]
        for key, value in values.items():
            summary.summary.update.add(nested_key=[key], value_json=json.dumps(latest[key]))
            history.history.item.add(nested_key=[key], value_json=json.dumps(value))
        history.history.step.num = step
        yield from (summary, history)


def _summarized(value: float, before: dict[str, float] | float | None) -> dict[str, float] | float:
    """Return what the summary holds of a metric after a value: the value, or a dict with the best one too."""
    if not isinstance(before, dict):
        return value
    return {name: _KEPT[name](before[name], value) for name in before}
