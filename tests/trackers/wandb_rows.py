"""Rows to log to W&B, and what its local files hold of them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hydrant.trackers.wandb import WandbTracker

Make = Callable[..., WandbTracker]
Warnings = Callable[[], list[str]]
SUMMARY = {"best": {"metric": "val/accuracy", "value": 0.75, "num_updates": 3}}


def rows(start: int = 0, stop: int = 5) -> list[dict[str, float]]:
    return [
        {"num_updates": n, "epoch": n / 10, "time": 1e9 + n, "train/loss": 1 / (1 + n)}
        for n in range(start, stop)
    ]


def log_rows(tracker: WandbTracker, start: int = 0, stop: int = 5) -> None:
    for row in rows(start, stop):
        tracker.log(row)


def own(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a history without what the SDK adds."""
    return [{key: value for key, value in row.items() if not key.startswith("_")} for row in history]


def read_local(folder: Path) -> list[dict[str, Any]]:
    """The records of a run in a W&B folder, by W&B's own reader: what `wandb leet inspect --json` runs."""
    from wandb.util import get_core_path

    (file,) = folder.glob("*.wandb")
    options = ["--no-observability", "--json", "--run-file", str(file), str(folder)]
    reader = [get_core_path(), "leet", "inspect", *options]
    lines = subprocess.run(reader, capture_output=True, text=True, check=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def local_rows(folder: Path) -> list[dict[str, Any]]:
    return own([record["history"]["item"] for record in read_local(folder) if record["type"] == "history"])


def kill_core(signum: int) -> None:
    """Send a signal to this process's wandb-core."""
    children = " ".join(path.read_text() for path in Path("/proc/self/task").glob("*/children")).split()
    (core,) = [pid for pid in children if "wandb-core" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(int(core), signum)
