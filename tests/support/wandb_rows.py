"""Rows to log to W&B, and readers for W&B's local files."""

import json
import math
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from processes import descendants, wait_until_gone

from hydrant.config.flat import flatten, group_choices
from hydrant.files.on_disk import write_json
from hydrant.runs.folder import SUMMARY as SUMMARY_FILE
from hydrant.runs.folder import RunFolder, read_options, read_overrides
from hydrant.runs.record import read_metrics
from hydrant.trackers import RunIdentity

Make = Callable[..., Any]
Warnings = Callable[[], list[str]]
SUMMARY = {"best": {"metric": "val/accuracy", "value": 0.75, "num_updates": 3}}


def rows(start: int = 0, stop: int = 5) -> list[dict[str, float]]:
    return [
        {"num_updates": n, "epoch": n / 10, "time": 1e9 + n, "train/loss": 1 / (1 + n)}
        for n in range(start, stop)
    ]


def log_rows(tracker: Any, start: int = 0, stop: int = 5) -> None:
    for row in rows(start, stop):
        tracker.log(row)


def without_sdk_keys(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of a history without the keys that the SDK adds."""
    return [{key: value for key, value in row.items() if not key.startswith("_")} for row in history]


def read_local(folder: Path) -> list[dict[str, Any]]:
    """Return the records in a W&B folder, read by W&B's own `wandb leet inspect --json`."""
    from wandb.util import get_core_path

    (file,) = folder.glob("*.wandb")
    options = ["--no-observability", "--json", "--run-file", str(file), str(folder)]
    reader = [get_core_path(), "leet", "inspect", *options]
    lines = subprocess.run(reader, capture_output=True, text=True, check=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def read_finished(folder: Path) -> list[dict[str, Any]]:
    """Return the records of a finished run, when wandb-core has written them all: it flushes its file every second."""
    deadline = time.monotonic() + 60
    while True:
        records = read_local(folder)
        if any(record["type"] == "exit" for record in records) or time.monotonic() > deadline:
            return records
        time.sleep(0.1)


def local_rows(folder: Path) -> list[dict[str, Any]]:
    return without_sdk_keys(
        [record["history"]["item"] for record in read_local(folder) if record["type"] == "history"]
    )


def wait_for_local_rows(folder: Path, expected: list[dict[str, Any]]) -> None:
    """Wait until wandb-core has written these rows to its file, which it flushes every second."""
    deadline = time.monotonic() + 60
    while _local_rows_so_far(folder) != expected and time.monotonic() < deadline:
        time.sleep(0.1)
    assert local_rows(folder) == expected


def _local_rows_so_far(folder: Path) -> list[dict[str, Any]]:
    try:
        return local_rows(folder)
    except subprocess.CalledProcessError:  # the file has no complete record yet
        return []


def kill_core(signum: int) -> None:
    """Send a signal to the wandb-core of this process. After SIGKILL, wait for its death."""
    pids = descendants(os.getpid())
    (core,) = [pid for pid in pids if "wandb-core" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(core, signum)
    if signum == signal.SIGKILL:
        wait_until_gone([core], seconds=60)


def log_run_folder(folder: Path, make_wandb: Make) -> None:
    """Log the content of a run folder to W&B as its run would."""
    config = flatten(RunFolder(folder).config) | group_choices(read_options(folder))
    config |= {"overrides": read_overrides(folder)}
    identity = RunIdentity(folder, folder.name, "study", "classification", ("digits",), config)
    tracker = make_wandb(identity, project="study")
    for row in read_metrics(folder):
        tracker.log({key: math.nan if value is None else value for key, value in row.items()})
    summary = RunFolder(folder).recorded
    tracker.finish({"finished": 0, "failed": 1, "preempted": 143}[summary["status"]], summary)
    write_json(folder / SUMMARY_FILE, summary | {"wandb": tracker.describe()})
