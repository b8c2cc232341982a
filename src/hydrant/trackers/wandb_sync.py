"""The offline parts of a W&B run, sent by the SDK's own `wandb sync`, so that nothing is there twice or not at all.

wandb-core adds what it sends to what the server has. So an upload that was broken off is gone on with: the server is
asked how many rows it has, and only what follows is sent, from a file of our own; the run's stays as it is.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hydrant.errors import ConfigError, HydrantError, RecordError, first_line
from hydrant.locking import exclusive
from hydrant.trackers.record import read_summary, write_json
from hydrant.trackers.wandb_access import Account, NoAccessError
from hydrant.trackers.wandb_files import read_records, remaining, write_records
from hydrant.trackers.wandb_media import STAGING

State = Literal["sent", "waiting", "already sent", "left out", "failed"]

_ASIDE = Path("wandb", ".sync")
_NUM_ROWS = """query RunResumeStatus($project: String, $entity: String, $name: String!) {
  model(name: $project, entityName: $entity) { bucket(name: $name, missingOk: true) { historyLineCount } }
}"""
_ENTITY = "query Viewer { viewer { entity } }"
_QUERY_SECONDS = 30.0


@dataclass(frozen=True)
class Upload:
    """What became of the offline parts of a run."""

    state: State
    detail: str


class UploadError(HydrantError):
    """A part of a run could not be sent; the next try goes on where this one ended."""


def look(folder: Path) -> Upload:
    """What is to be sent of a run folder."""
    parts = _parts(folder)
    if not parts:
        return Upload("left out", "nothing was kept offline")
    waiting = [part for part in parts if not _marker(part).exists()]
    if not waiting:
        return Upload("already sent", "")
    return Upload("waiting", f"{len(waiting)} part{'s' if len(waiting) > 1 else ''}")


def upload(folder: Path, account: Account, timeout: float) -> Upload:
    """Send what is to be sent of a run folder, the oldest part first; `timeout` seconds for each."""
    folder = folder.resolve()
    found = look(folder)
    if found.state != "waiting":
        return found
    try:
        with exclusive(folder) as lock:
            waiting = [part for part in _parts(folder) if not _marker(part).exists()]
            address = _address(waiting[-1], account)
            num_rows = sum(_send(part, folder, account, timeout, lock) for part in waiting)
            _note(folder, address)
            shutil.rmtree(folder / STAGING, ignore_errors=True)
    except ConfigError:
        return Upload("left out", "it goes on, or is being sent")
    except (HydrantError, NoAccessError, OSError) as error:
        return Upload("failed", first_line(error))
    return Upload("sent", f"{num_rows} rows")


def _parts(folder: Path) -> list[Path]:
    """The files of what was kept offline, the oldest first: their folders have the time in their names."""
    return sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))


def _marker(part: Path) -> Path:
    """W&B's own sign that a file was sent."""
    return part.with_name(f"{part.name}.synced")


def _send(part: Path, folder: Path, account: Account, timeout: float, lock: int) -> int:
    """Send what the server does not have yet of a part; how many rows.

    Raises:
        UploadError: it was not, or not all of it.
    """
    aside = folder / _ASIDE / part.parent.name
    copy = aside / part.name
    records = _records(part)
    run = _run_in(records)
    num_rows = sum(record.HasField("history") for record in records)
    if run is not None and not _marker(copy).exists():  # the latter: it outlived the command that began it
        aside.mkdir(parents=True, exist_ok=True)
        num_sent = min(_num_sent(part, copy, run, account), num_rows)
        num_rows -= num_sent
        write_records(copy, remaining(records, num_sent, folder))
        files = aside / "files"
        files.unlink(missing_ok=True)
        files.symlink_to(part.parent / "files")
        _sync(copy, folder, timeout, lock)
    _marker(part).touch()
    shutil.rmtree(aside, ignore_errors=True)
    return num_rows


def _address(part: Path, account: Account) -> dict[str, str] | None:
    """Where a run will be, as its tracker would describe it; None if nothing of it was kept."""
    run = _run_in(_records(part))
    if run is None:
        return None
    entity = run.entity or account.ask(_ENTITY, {}, _QUERY_SECONDS)["viewer"]["entity"]
    return {"id": run.run_id, "mode": "online", "path": f"{entity}/{run.project}/{run.run_id}"}


def _note(folder: Path, address: dict[str, str] | None) -> None:
    """Say in the summary where the run is now."""
    if address is not None and (summary := read_summary(folder)):
        write_json(folder / "summary.json", summary | {"wandb": address})


def _records(part: Path) -> list[Any]:
    return [] if part.stat().st_size == 0 else read_records(part)


def _run_in(records: Iterable[Any]) -> Any:
    return next((record.run for record in records if record.HasField("run")), None)


def _num_sent(part: Path, copy: Path, run: Any, account: Account) -> int:
    """How many rows of a part the server has: of an upload that was broken off, ours or of the user's `wandb sync`."""
    state = copy.with_name(f"{copy.name}.syncstate")
    before = part.with_name(state.name)
    if not state.exists() and before.exists():
        shutil.copyfile(before, state)
    if not state.exists():
        return 0
    try:
        first = int(json.loads(state.read_text(encoding="utf-8"))["starting_step"])
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{state} is damaged ({first_line(error)})") from error
    names = {"project": run.project, "entity": run.entity or None, "name": run.run_id}
    model = account.ask(_NUM_ROWS, names, _QUERY_SECONDS).get("model") or {}
    return max((model.get("bucket") or {}).get("historyLineCount", 0) - first, 0)


def _sync(file: Path, folder: Path, timeout: float, lock: int) -> None:
    """Let the SDK send a file.

    Raises:
        UploadError: it did not send all.
    """
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    environment |= {"WANDB_MODE": "online", "WANDB_ERROR_REPORTING": "false"}
    words = [sys.executable, "-m", "wandb", "sync", str(file)]
    try:
        ended = subprocess.run(
            words,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
            pass_fds=[lock],  # nobody else sends this run while it lives
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UploadError(f"not done within {timeout:g} s; the same command goes on") from None
    if not _marker(file).exists():
        told = [line.partition("ERROR ")[2] for line in ended.stdout.splitlines() if "ERROR " in line]
        raise UploadError(
            told[-1] if told else f"wandb sync ended with {ended.returncode}: {ended.stdout[-300:]}"
        )
