"""Kill runs, with all their processes or at one of their writes, and compare runs byte by byte.

Used by tests and by the scripts kill_*.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from processes import descendants
from run_folders import saved_updates

from hydrant.runs.folder import RunStatus
from hydrant.runs.job import Job


def kill(pids: Iterable[int]) -> None:
    """Send SIGKILL to processes and all their descendants."""
    for pid in [pid for root in pids for pid in (root, *descendants(root))]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def complete_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the complete rows of metrics.jsonl, without values that depend on the clock."""
    file = folder / "metrics.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    clock = ("time", "perf/", "compile/")
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(clock)} for line in lines]


def updates_lost(folder: Path) -> int:
    """Return the number of updates that a killed run must repeat."""
    rows = complete_rows(folder)
    return rows[-1]["num_updates"] - max(saved_updates(folder / "checkpoints"), default=0) if rows else 0


def differing(one: Path, other: Path) -> list[str]:
    """Return the names of the files in which two runs differ: those of the last checkpoint, and metrics.jsonl."""
    files, other_files = _files(one), _files(other)
    names = [name for name in sorted({*files, *other_files}) if files.get(name) != other_files.get(name)]
    return names + ["metrics.jsonl"] * (complete_rows(one) != complete_rows(other))


def _files(folder: Path) -> Mapping[str, bytes]:
    """Return the files of the last checkpoint."""
    last = folder / "checkpoints" / "last"
    return {file.name: file.read_bytes() for file in last.iterdir()} if last.exists() else {}


def execute_with_kill(job: Job, record: Path | None) -> RunStatus:
    """Execute a job, and send SIGKILL to this process before its first write, once training has begun, that is new.

    `record` lists the writes before which earlier calls were killed; None kills at no write. Opening a temporary file
    does not count, renaming it does. The end of the tracker is the file `tracker_has_ended`. Returns how the run ended.
    Call it in a process of its own.
    """
    from hydrant.runs import execute
    from hydrant.trackers.base import NullTracker

    train, written = execute.train, Counter[str]()
    killed_at = record.read_text().splitlines() if record is not None and record.exists() else []

    def kill_before_write(event: str, arguments: tuple[Any, ...]) -> None:
        is_rename = event == "os.rename"
        if is_rename or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR)):
            path = Path(str(arguments[is_rename]))
            if record is not None and path.is_relative_to(job.folder) and not path.name.startswith("."):
                written[path.name] += 1
                if (write := f"{path.name} {written[path.name]}") not in killed_at:
                    record.write_text("\n".join([*killed_at, write]))
                    os.kill(os.getpid(), signal.SIGKILL)

    def train_observed(trainer: Any) -> None:
        sys.addaudithook(kill_before_write)
        train(trainer)

    def end_tracker(*_: object) -> None:
        job.folder.joinpath("tracker_has_ended").touch()

    execute.train = train_observed
    NullTracker.finish = end_tracker
    return execute.execute(job).status
