"""`hydrant sync`: upload the offline parts of a W&B run with the SDK's `wandb sync`, each row exactly once.

wandb-core appends the rows that it sends to those on the server. To continue an interrupted upload, the server is
queried for its number of rows, and a copy of the file without these rows is sent. The file of the run is not changed.

Read and write the files `run-<id>.wandb` in which wandb-core stores runs.

A file is a header and protobuf records in the log format of LevelDB: blocks of 32 KiB with chunks of
(crc32, length, kind), where a record fills one or more chunks. Where wandb-core was killed before it had written all
rows, `completed` adds them from metrics.jsonl.
"""

import glob
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from hydrant.config.command_line import Flags
from hydrant.errors import ConfigError, FolderInUse, HydrantError, RecordError, first_line, near_folders
from hydrant.extensions.wandb import sdk
from hydrant.extensions.wandb.tracker import ID_FILE, STAGING
from hydrant.files.on_disk import write_json
from hydrant.files.plain_values import Positive, PositiveInt, check_value
from hydrant.files.read_file import read_bytes, read_json
from hydrant.records import Answer, Record
from hydrant.runs.folder import ROOTS, SUMMARY, RunFolder
from hydrant.runs.lock import exclusive
from hydrant.runs.record import read_metrics
from hydrant.terminal.console import notice, relative, tell
from hydrant.terminal.text import align_columns
from hydrant.trackers import read_id

_HEADER = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)  # the 0 is the version
_BLOCK = 32768
_CHUNK = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4


class UploadResult(Answer):
    """The state of the W&B data of a run."""

    state: str
    detail: str


class Sync(Answer):
    """The runs with W&B data. If one has `failed`, the exit status is 1.

    Attributes:
        runs: By run folder.
    """

    runs: Mapping[str, UploadResult]


def read_records(path: Path) -> list[Any]:
    """Return the complete records of a run's file, up to one that a kill has truncated; none of an empty file.

    Raises:
        RecordError: the file is damaged, or has the format of another version of W&B.
    """
    from google.protobuf.message import DecodeError
    from wandb.proto import wandb_internal_pb2

    data = read_bytes(path) or b""
    if data and not data.startswith(_HEADER):
        raise RecordError(f"{path} does not have the format of W&B 0.31", remedy="`wandb sync` may read it")
    records = list[Any]()
    for content in _contents(data):
        record: Any = wandb_internal_pb2.Record()  # pyrefly: ignore[missing-attribute]  # made at the import
        try:
            record.ParseFromString(content)
        except DecodeError as error:
            raise RecordError(f"{path} is damaged ({first_line(error)})") from error
        records.append(record)
    return records


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
    begins = [_begin(read_records(other)) for other in parts - {part}]  # online ones too
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
        summary, history = (wandb_internal_pb2.Record() for _ in range(2))  # pyrefly: ignore[missing-attribute]
        for key, value in values.items():
            before = latest.get(key)
            is_dict = isinstance(before, dict)  # of the last value and the best one
            latest[key] = {n: _KEPT[n](before[n], value) for n in before} if is_dict else value
            summary.summary.update.add(nested_key=[key], value_json=json.dumps(latest[key]))
            history.history.item.add(nested_key=[key], value_json=json.dumps(value))
        history.history.step.num = step
        yield from (summary, history)


_TEMPORARY = Path("wandb", ".sync")  # holds copies of parts during an upload
_NUM_ROWS = """query RunResumeStatus($project: String, $entity: String, $name: String!) {
  model(name: $project, entityName: $entity) { bucket(name: $name, missingOk: true) { historyLineCount } }
}"""
_ENTITY = "query Viewer { viewer { entity } }"
_QUERY_SECONDS = 30.0


def inspect(folder: Path) -> UploadResult:
    """Return whether a run folder has offline parts to upload."""
    if not _parts(folder):
        return UploadResult("left out", "it has no offline parts")
    if waiting := _waiting_parts(folder):
        return UploadResult("waiting", f"{len(waiting)} part{'s' if len(waiting) > 1 else ''}")
    if (folder / _TEMPORARY).exists():  # until everything is written
        return UploadResult("waiting", "the end of an upload")
    return UploadResult("already sent", "")


def upload(folder: Path, account: sdk.Account, timeout: float) -> UploadResult:
    """Upload the offline parts of a run folder, the oldest first, each within `timeout` seconds."""
    folder = folder.resolve()
    result = inspect(folder)
    if result.state != "waiting":
        return result
    try:
        with exclusive(folder) as lock:
            waiting = _waiting_parts(folder)
            address = _address(_parts(folder)[-1], account)
            num_rows = sum(_send(part, folder, account, timeout, lock) for part in waiting)
            if address is not None and (summary := RunFolder(folder).recorded):
                write_json(folder / SUMMARY, summary | {"wandb": address})
            for leftover in (STAGING, _TEMPORARY):
                shutil.rmtree(folder / leftover, ignore_errors=True)
    except FolderInUse:
        return UploadResult("left out", "it is running, or another command is uploading it")
    except (HydrantError, sdk.NoAccessError, OSError) as error:
        return UploadResult("failed", first_line(error))
    return UploadResult("sent", f"{num_rows} rows")


def _waiting_parts(folder: Path) -> list[Path]:
    return [part for part in _parts(folder) if not _marker(part).exists()]


def _parts(folder: Path) -> list[Path]:
    """Return the files of the offline parts, the oldest first: the names of their folders hold the time."""
    parts = [*folder.glob("wandb/offline-run-*/run-*.wandb")]
    if (elsewhere := sdk.files_folder(folder)) != folder:
        name = glob.escape((read_id(folder, ID_FILE) or b"").decode(errors="replace"))
        parts += elsewhere.glob(f"wandb/offline-run-*/run-{name}.wandb")
    return sorted(parts, key=lambda part: part.parent.name)


def _marker(part: Path) -> Path:
    """Return W&B's marker file for an uploaded file."""
    return part.with_name(f"{part.name}.synced")


def _send(part: Path, folder: Path, account: sdk.Account, timeout: float, lock: int) -> int:
    """Upload the records of a part that the server does not have. Return the number of rows.

    Raises:
        HydrantError: they were not uploaded completely.
    """
    temporary = folder / _TEMPORARY / part.parent.name
    copy = temporary / part.name
    records = completed(read_records(part), part, folder)
    run = _run_in(records)
    num_rows = sum(record.HasField("history") for record in records)
    if run is not None and not _marker(copy).exists():  # it exists if the command died after the upload
        temporary.mkdir(parents=True, exist_ok=True)
        num_sent = min(_num_sent(part, copy, run, account), num_rows)
        num_rows -= num_sent
        write_records(copy, remaining_records(records, num_sent, folder))
        files = temporary / "files"
        files.unlink(missing_ok=True)
        files.symlink_to(part.parent / "files")
        _sync(copy, timeout, lock)
    _marker(part).touch()
    shutil.rmtree(temporary, ignore_errors=True)
    return num_rows


def _address(part: Path, account: sdk.Account) -> dict[str, str] | None:
    """Return the run's address on the server, in the form of `Tracker.describe`; None for an empty part."""
    run = _run_in(read_records(part))
    if run is None:
        return None
    entity = run.entity or account.query(_ENTITY, {}, _QUERY_SECONDS)["viewer"]["entity"]
    return {"id": run.run_id, "mode": "online", "path": f"{entity}/{run.project}/{run.run_id}"}


def _run_in(records: Iterable[Any]) -> Any:
    return next((record.run for record in records if record.HasField("run")), None)


class _SyncState(Record):
    """What `wandb sync` notes of a file that it has begun to send."""

    starting_step: int


def _num_sent(part: Path, copy: Path, run: Any, account: sdk.Account) -> int:
    """Return how many rows of a part the server has from an interrupted upload, or from the user's `wandb sync`."""
    state = copy.with_name(f"{copy.name}.syncstate")
    state_of_part = part.with_name(state.name)
    if not state.exists() and state_of_part.exists():
        shutil.copyfile(state_of_part, state)
    if not state.exists():
        return 0
    first = (read_json(state, _SyncState) or _SyncState(0)).starting_step
    names = {"project": run.project, "entity": run.entity or None, "name": run.run_id}
    model = account.query(_NUM_ROWS, names, _QUERY_SECONDS).get("model") or {}
    return max((model.get("bucket") or {}).get("historyLineCount", 0) - first, 0)


def _sync(file: Path, timeout: float, lock: int) -> None:
    """Upload a file with `wandb sync`.

    Raises:
        HydrantError: it was not uploaded completely.
    """
    environment = {name: value for name, value in os.environ.items() if name != sdk.SERVICE}
    environment |= {"WANDB_MODE": "online", "WANDB_ERROR_REPORTING": "false"}
    try:
        # In a folder of its own: the SDK reads wandb/settings in its working folder, which name the server.
        with tempfile.TemporaryDirectory(prefix="hydrant-sync-") as empty:
            process = subprocess.run(
                [sys.executable, "-m", "wandb", "sync", str(file)],
                cwd=empty,
                env=environment,
                timeout=timeout,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                pass_fds=[lock],
                check=False,  # which keeps the run locked until this process ends
            )
    except subprocess.TimeoutExpired:
        raise HydrantError(
            f"not finished within {timeout:g} s", remedy="the same command continues it"
        ) from None
    if not _marker(file).exists():
        errors = [line.partition("ERROR ")[2] for line in process.stdout.splitlines() if "ERROR " in line]
        status = f"wandb sync ended with {process.returncode}: {process.stdout[-300:]}"
        raise HydrantError(errors[-1] if errors else status)


_PROBE_SECONDS = 10.0


def main(arguments: Sequence[str]) -> int:
    """Upload offline runs. Return the exit status."""
    options, words = Flags("sync", jobs=4, timeout=3600.0, dry_run=False).split(arguments)
    check_value("--jobs", PositiveInt, options.jobs)
    check_value("--timeout", Positive, options.timeout)
    results = {folder: inspect(folder) for folder in _find_folders(words)}
    waiting = [folder for folder, result in results.items() if result.state == "waiting"]
    if waiting and not options.dry_run:
        account = _account()
        for folder, result in _upload_all(waiting, account, options.jobs, options.timeout):
            results[folder] = result
            notice(f"{relative(folder)}: {result.state}{f' ({result.detail})' if result.detail else ''}")
    tell(_table(results), Sync({relative(folder): result for folder, result in results.items()}))
    return int(any(result.state == "failed" for result in results.values()))


def _find_folders(words: Sequence[str]) -> list[Path]:
    """Return the run folders with a W&B run in these folders or globs, each once.

    Raises:
        ConfigError: a word matches nothing.
    """
    folders = dict[Path, None]()
    for word in words or [root for root in ROOTS if Path(root).is_dir()]:
        paths = [Path(p) for p in sorted(glob.glob(word, recursive=True))]  # noqa: PTH207  # Path.glob rejects absolute patterns
        if not paths:
            remedy = near_folders(Path(word)) or "give run folders, sweep folders or globs of them"
            raise ConfigError("RUNS", f"{word!r} is not a folder", remedy=remedy)
        for path in paths:
            runs = sorted(file.parents[1] for file in path.rglob(str(ID_FILE)))
            folders |= dict.fromkeys(run.resolve() for run in runs)
    return list(folders)


def _account() -> sdk.Account:
    """Return the account that receives the runs.

    Raises:
        ConfigError: there is no API key, or the server does not answer.
    """
    with sdk.sdk_session():
        if (problem := sdk.access_problem(_PROBE_SECONDS)) is None:
            return sdk.Account.configured()
    remedy = "log in with `wandb login`, or set WANDB_API_KEY" if "API key" in problem else "try again later"
    raise ConfigError("", f"nothing was uploaded: {problem}", remedy=remedy)


def _upload_all(
    folders: Sequence[Path], account: sdk.Account, jobs: int, timeout: float
) -> Iterator[tuple[Path, UploadResult]]:
    """Upload run folders in threads. Yield each folder with its result as soon as it is done."""
    with ThreadPoolExecutor(jobs, "sync") as threads:
        futures = {threads.submit(upload, folder, account, timeout): folder for folder in folders}
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:  # Ctrl-C also reaches the uploads that are running
            threads.shutdown(wait=False, cancel_futures=True)


def _table(results: Mapping[Path, UploadResult]) -> str:
    """Return a table with one line per run, and the number of runs in each state."""
    if not results:
        return "no W&B runs found"
    rows = [[relative(folder), result.state, result.detail] for folder, result in results.items()]
    counts = Counter(result.state for result in results.values())
    lines = align_columns([["run", "state", ""], *rows], {0, 1, 2})
    total = ", ".join(f"{count} {state}" for state, count in counts.items())
    return "\n".join([*(line.rstrip() for line in lines), "", total])
