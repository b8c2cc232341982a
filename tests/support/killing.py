"""Kill runs, with all their processes or before one of their writes, and compare runs byte by byte.

Used by tests, by the scripts kill_* and by scripts/gpu.
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
from processes import descendants
from repository import ROOT
from run_folders import saved_updates

from hydrant.sweeps.executors.base import Unit
from hydrant.sweeps.fork_server.call import ProcessDied, call_isolated

_TRAIN = [sys.executable, str(ROOT / "train.py")]
_RESULTS = ("status", "num_updates", "total_updates", "best", "error", "num_parameters")
"""The keys of summary.json that do not depend on the clock or the machine."""

PRELOAD = (
    "hydrant.commands.train",
    "hydrant.sweeps.executors.base",
    "hydrant.runs.execute",
    *Unit.paths_to_preload([]),
    "timm",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "wandb",
)
"""Modules that the processes to kill need. They are forked from a server that has imported them."""


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
    whole, killed = work / "outputs" / f"{name}_whole", work / "outputs" / f"{name}_killed"
    started = time.monotonic()
    subprocess.run([*_TRAIN, f"name={whole.name}", *words], cwd=work, check=True, stdout=subprocess.DEVNULL)
    num_updates = complete_rows(whole)[-1]["num_updates"]
    most_lost = kills = 0
    for point in sorted(rng.sample(range(1, num_updates - 2), num_kills)):
        process = subprocess.Popen(
            [*_TRAIN, f"name={killed.name}", *words], cwd=work, stdout=subprocess.DEVNULL
        )
        if not _wait_for(killed, point, process):
            break
        time.sleep(rng.uniform(0, 0.02))  # so that it is not always just after a row is written
        kill([process.pid])
        if process.wait() != -signal.SIGKILL:
            break
        kills += 1
        most_lost = max(most_lost, updates_lost(killed))
    subprocess.run([*_TRAIN, f"name={killed.name}", *words], cwd=work, check=True, stdout=subprocess.DEVNULL)
    return {
        "kills": kills,
        "most_updates_lost": most_lost,
        "differing": differing(whole, killed),
        "seconds": round(time.monotonic() - started),
    }


def _wait_for(folder: Path, num_updates: int, process: subprocess.Popen[bytes]) -> bool:
    """Wait until a process has written a row of `num_updates` or more. Return False if it ends before."""
    file, since = folder / "metrics.jsonl", time.time()
    while process.poll() is None:
        is_new = file.exists() and file.stat().st_mtime > since
        if is_new and (rows := complete_rows(folder)) and rows[-1]["num_updates"] >= num_updates:
            return True
        time.sleep(0.002)
    return False


@dataclass(frozen=True)
class KilledStart:
    """How a start ended that was to be killed before a write."""

    exit_status: int | ProcessDied
    writes: list[str]  # before the kill, and the one that it prevented
    output: str

    @property
    def was_killed(self) -> bool:
        return isinstance(self.exit_status, ProcessDied)


def start_and_kill(
    start: Callable[..., int], arguments: tuple[Any, ...], root: Path, num_writes: int | None, scratch: Path
) -> KilledStart:
    """Return `start(*arguments)`, an exit status, called in a new process.

    The process, with all that it started, is killed when it has made this many writes under `root`; None: never.
    `scratch` names files with what it wrote and printed.
    """
    writes, output = scratch.with_suffix(".writes"), scratch.with_suffix(".txt")
    for file in (writes, output):
        file.write_bytes(b"")
    call = call_isolated(_start, (start, arguments, root, num_writes, writes, output), PRELOAD)
    return KilledStart(call.result, writes.read_text().splitlines(), output.read_text())


def _start(
    start: Callable[..., int],
    arguments: tuple[Any, ...],
    root: Path,
    num_writes: int | None,
    writes: Path,
    output: Path,
) -> int:
    pid = os.getpid()
    log = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    record = os.open(writes, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)

    def kill_before_write(event: str, path: Path) -> None:
        written = os.fstat(record).st_size and writes.read_bytes().count(b"\n")
        os.write(record, f"{event} {path.relative_to(root.resolve())}\n".encode())
        if num_writes is not None and written >= num_writes:
            kill([pid])
            signal.pause()  # until the signal has arrived

    observe_writes(root, kill_before_write)
    return start(*arguments)
