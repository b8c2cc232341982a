"""Kill runs, with all their processes or before one of their writes, and compare runs byte by byte.

Used by tests and by the scripts kill_*.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from file_events import observe_writes
from processes import descendants, fork, wait_for, wait_for_fork
from repository import ROOT
from run_folders import saved_updates

_TRAIN = [sys.executable, str(ROOT / "train.py")]
_RESULTS = ("status", "num_updates", "total_updates", "best", "error", "num_parameters")
"""The keys of summary.json that do not depend on the clock or the machine."""


def kill(pids: Iterable[int]) -> None:
    """Send SIGKILL to processes and all their descendants, to this process last."""
    found = [pid for root in pids for pid in (root, *descendants(root))]
    for pid in sorted(found, key=lambda pid: pid == os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def complete_rows(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """Return the complete rows of metrics.jsonl, without values that depend on the clock."""
    file = folder / name
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    clock = ("time", "perf/", "compile/")
    return [{k: v for k, v in json.loads(line).items() if not k.startswith(clock)} for line in lines]


def updates_lost(folder: Path) -> int:
    """Return the number of updates that a killed run must repeat."""
    rows = complete_rows(folder)
    return rows[-1]["num_updates"] - max(saved_updates(folder / "checkpoints"), default=0) if rows else 0


def differing(one: Path, other: Path) -> list[str]:
    """Return the names of the files in which two runs differ, apart from what depends on the clock."""
    files, other_files = _contents(one), _contents(other)
    return [name for name in sorted({*files, *other_files}) if files.get(name) != other_files.get(name)]


def _contents(folder: Path) -> dict[str, Any]:
    """Return what the files of a run hold; of those that depend on the clock, only that they exist."""
    files = {str(file.relative_to(folder)): file for file in sorted(folder.rglob("*"))}
    return {name: _content(file) for name, file in files.items() if "wandb" not in Path(name).parts}


def _content(file: Path) -> Any:
    if file.is_symlink():
        return file.readlink()
    if file.is_dir():
        return "a folder"
    if file.parents[1].name == "checkpoints":
        return file.read_bytes()
    if file.suffix == ".jsonl":
        return complete_rows(file.parent, file.name)
    if file.name == "summary.json":
        summary = json.loads(file.read_text())
        return {key: summary.get(key) for key in _RESULTS}
    return "a file"


def run_with_kills(
    work: Path, name: str, words: Sequence[str], num_kills: int, rng: random.Random
) -> dict[str, Any]:
    """Train once without and once with kills; return the kills, the most updates lost, and the files that differ."""
    whole, killed, reached = (work / "outputs" / f"{name}_{run}" for run in ("whole", "killed", "reached"))
    started = time.monotonic()

    def start(run: Path, **variables: str) -> subprocess.Popen[bytes]:
        variables["HYDRANT_ALLOW_TARGETS"] = f"{os.environ.get('HYDRANT_ALLOW_TARGETS', '')},waiting_hook"
        variables["PYTHONPATH"] = f"{Path(__file__).parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        command = [*_TRAIN, f"name={run.name}", *words, "+hooks.wait={_target_: waiting_hook.Wait}"]
        return subprocess.Popen(command, cwd=work, stdout=subprocess.DEVNULL, env=os.environ | variables)

    assert start(whole).wait() == 0
    num_updates = complete_rows(whole)[-1]["num_updates"]
    most_lost = 0
    for point in sorted(rng.sample(range(1, num_updates - 2), num_kills)):
        process = start(killed, WAIT_AT=str(point), WAIT_FILE=str(reached))
        wait_for(reached.exists, process, seconds=600, poll_seconds=0.002)
        time.sleep(rng.uniform(0, 0.02))  # so that it is not always at the same step of an update
        kill([process.pid])
        assert process.wait() == -signal.SIGKILL
        reached.unlink()
        most_lost = max(most_lost, updates_lost(killed))
    assert start(killed).wait() == 0
    return {
        "kills": num_kills,
        "most_updates_lost": most_lost,
        "differing": differing(whole, killed),
        "seconds": round(time.monotonic() - started),
    }


@dataclass(frozen=True)
class KilledStart:
    """How a start ended that was to be killed before a write."""

    exit_status: int  # negative for a signal
    writes: list[str]  # before the kill, and the one that it prevented
    output: str

    @property
    def was_killed(self) -> bool:
        return self.exit_status == -signal.SIGKILL


def start_and_kill(
    start: Callable[..., int], arguments: tuple[Any, ...], root: Path, num_writes: int | None, scratch: Path
) -> KilledStart:
    """Return how `start(*arguments)`, an exit status, ends in a fork of this process.

    The fork, with all that it started, is killed when it has made this many writes under `root`; None: never.
    `scratch` names files with what it wrote and printed.
    """
    writes, output = scratch.with_suffix(".writes"), scratch.with_suffix(".txt")
    writes.write_bytes(b"")

    def start_observed() -> int:
        pid, record = os.getpid(), os.open(writes, os.O_WRONLY | os.O_APPEND)

        def kill_before_write(event: str, path: Path) -> None:
            written = os.fstat(record).st_size and writes.read_bytes().count(b"\n")
            os.write(record, f"{event} {path.relative_to(root.resolve())}\n".encode())
            if num_writes is not None and written >= num_writes:
                kill([pid])
                signal.pause()  # until the signal has arrived

        observe_writes(root, kill_before_write)
        return start(*arguments)

    status = wait_for_fork(fork(start_observed, output))
    return KilledStart(status, writes.read_text().splitlines(), output.read_text())
