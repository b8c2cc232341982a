"""What the scripts that kill share: killing all at once, and telling runs apart byte for byte."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from processes import descendants


def kill(pids: Iterable[int]) -> None:
    """SIGKILL to processes and all that they have started, and they."""
    for pid in [found for root in pids for found in (root, *descendants(root))]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The whole rows of a run, without what the clock decides."""
    file = folder / "metrics.jsonl"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    clock = ("time", "perf/", "compile/")
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(clock)} for line in lines]


def newest(folder: Path) -> int:
    """The updates of a run's newest checkpoint, 0 where there is none."""
    return max((int(path.name[7:]) for path in folder.glob("checkpoints/update_*")), default=0)


def updates_lost(folder: Path) -> int:
    """How many updates of a killed run are made again."""
    rows = rows_of(folder)
    return rows[-1]["num_updates"] - newest(folder) if rows else 0


def differing(one: Path, other: Path) -> list[str]:
    """The files of the last checkpoint, and the record, in which two runs differ."""
    ours, theirs = _files(one), _files(other)
    names = [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
    return names + ["metrics.jsonl"] * (rows_of(one) != rows_of(other))


def _files(folder: Path) -> Mapping[str, bytes]:
    """What a checkpoint holds; the manifest is of these."""
    last = folder / "checkpoints" / "last"
    return {file.name: file.read_bytes() for file in last.iterdir()} if last.exists() else {}
