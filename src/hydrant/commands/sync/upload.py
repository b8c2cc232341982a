"""Upload the offline parts of a W&B run with the SDK's `wandb sync`, each row exactly once.

wandb-core appends the rows that it sends to those on the server. To continue an interrupted upload, the server is
queried for its number of rows, and a copy of the file without these rows is sent. The file of the run is not changed.
"""

import glob
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from hydrant.commands.sync.wandb_files import completed, read_records, remaining_records, write_records
from hydrant.errors import FolderInUse, HydrantError, RecordError, UploadError, first_line
from hydrant.files.atomic_write import write_json
from hydrant.files.read_file import read_json
from hydrant.records.answers import UploadResult
from hydrant.runs.folder import SUMMARY, RunFolder
from hydrant.runs.lock import exclusive
from hydrant.trackers.base import read_id
from hydrant.trackers.wandb import ID_FILE, STAGING
from hydrant.trackers.wandb_sdk import SERVICE, Account, NoAccessError, files_folder

State = Literal["sent", "waiting", "already sent", "left out", "failed"]

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


def upload(folder: Path, account: Account, timeout: float) -> UploadResult:
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
    except (HydrantError, NoAccessError, OSError) as error:
        return UploadResult("failed", first_line(error))
    return UploadResult("sent", f"{num_rows} rows")


def _waiting_parts(folder: Path) -> list[Path]:
    return [part for part in _parts(folder) if not _marker(part).exists()]


def _parts(folder: Path) -> list[Path]:
    """Return the files of the offline parts, the oldest first: the names of their folders hold the time."""
    parts = [*folder.glob("wandb/offline-run-*/run-*.wandb")]
    if (elsewhere := files_folder(folder)) != folder:
        name = glob.escape((read_id(folder, ID_FILE) or b"").decode(errors="replace"))
        parts += elsewhere.glob(f"wandb/offline-run-*/run-{name}.wandb")
    return sorted(parts, key=lambda part: part.parent.name)


def _marker(part: Path) -> Path:
    """Return W&B's marker file for an uploaded file."""
    return part.with_name(f"{part.name}.synced")


def _send(part: Path, folder: Path, account: Account, timeout: float, lock: int) -> int:
    """Upload the records of a part that the server does not have. Return the number of rows.

    Raises:
        UploadError: they were not uploaded completely.
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


def _address(part: Path, account: Account) -> dict[str, str] | None:
    """Return the run's address on the server, in the form of `Tracker.describe`; None for an empty part."""
    run = _run_in(read_records(part))
    if run is None:
        return None
    entity = run.entity or account.query(_ENTITY, {}, _QUERY_SECONDS)["viewer"]["entity"]
    return {"id": run.run_id, "mode": "online", "path": f"{entity}/{run.project}/{run.run_id}"}


def _run_in(records: Iterable[Any]) -> Any:
    return next((record.run for record in records if record.HasField("run")), None)


def _num_sent(part: Path, copy: Path, run: Any, account: Account) -> int:
    """Return how many rows of a part the server has from an interrupted upload, or from the user's `wandb sync`."""
    state = copy.with_name(f"{copy.name}.syncstate")
    state_of_part = part.with_name(state.name)
    if not state.exists() and state_of_part.exists():
        shutil.copyfile(state_of_part, state)
    if not state.exists():
        return 0
    try:
        first = int((read_json(state, dict[str, Any]) or {})["starting_step"])
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{state} is damaged ({first_line(error)})") from error
    names = {"project": run.project, "entity": run.entity or None, "name": run.run_id}
    model = account.query(_NUM_ROWS, names, _QUERY_SECONDS).get("model") or {}
    return max((model.get("bucket") or {}).get("historyLineCount", 0) - first, 0)


def _sync(file: Path, timeout: float, lock: int) -> None:
    """Upload a file with `wandb sync`.

    Raises:
        UploadError: it was not uploaded completely.
    """
    environment = {name: value for name, value in os.environ.items() if name != SERVICE}
    environment |= {"WANDB_MODE": "online", "WANDB_ERROR_REPORTING": "false"}
    try:
        # In a folder of its own: the SDK reads wandb/settings in its working folder, which name the server.
        with tempfile.TemporaryDirectory(prefix="hydrant-sync-") as empty:
            process = subprocess.run(
                [sys.executable, "-m", "wandb", "sync", str(file)],
                cwd=empty,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=timeout,
                pass_fds=[lock],  # keeps the run locked until this process ends
                check=False,
            )
    except subprocess.TimeoutExpired:
        raise UploadError(
            f"not finished within {timeout:g} s", remedy="the same command continues it"
        ) from None
    if not _marker(file).exists():
        errors = [line.partition("ERROR ")[2] for line in process.stdout.splitlines() if "ERROR " in line]
        status = f"wandb sync ended with {process.returncode}: {process.stdout[-300:]}"
        raise UploadError(errors[-1] if errors else status)
