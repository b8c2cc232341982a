"""Runs in processes of their own, to be watched and killed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen
from typing import Any

LONG = (
    "tracker=local",
    "model.hidden=[16]",
    "duration=1000000",
    "log_every=20",
    "eval_every=4000",
    "save_every=4000",
)
"""A run that lasts until it is stopped."""


def wait_for_row(folder: Path, num_updates: int, process: Popen[Any]) -> None:
    """Until a run has written a row of `num_updates` or more."""
    file = folder / "metrics.jsonl"

    def has_come() -> bool:
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return bool(lines) and json.loads(lines[-1])["num_updates"] >= num_updates

    wait_for(has_come, process, seconds=240)


def wait_for(happens: Callable[[], bool], process: Popen[Any], seconds: float = 180) -> None:
    """Until something happens while a process lives."""
    limit = time.monotonic() + seconds
    while not happens():
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < limit
        time.sleep(0.02)


def descendants(pid: int) -> Iterator[int]:
    """The processes that a process has started, and they."""
    children = " ".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).split()
    for child in map(int, children):
        yield child
        yield from descendants(child)


def is_alive(pid: int) -> bool:
    """Whether it runs; what nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int], seconds: float) -> None:
    limit = time.monotonic() + seconds
    while any(map(is_alive, pids)):
        assert time.monotonic() < limit, [
            Path(f"/proc/{pid}/cmdline").read_text() for pid in pids if is_alive(pid)
        ]
        time.sleep(0.1)
