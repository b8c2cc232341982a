"""Kill runs with all their processes, and compare runs byte by byte. Used by tests and by the scripts kill_*."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from processes import descendants
from run_folders import saved_updates


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
