"""Run Hydrant's commands in processes of their own, and read what their runs have logged."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import torch

from benchmarks.figures import Failure, Item
from benchmarks.turns import ROOT, child_environment

AT_ONCE = 8 if torch.cuda.is_available() else 2


def run(
    *words: str, cwd: Path, limit_seconds: float = 240, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a Python command in a folder.

    Raises:
        TimeoutExpired: it took too long; it was killed.
    """
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=child_environment() | variables, timeout=limit_seconds,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def train(words: Sequence[str], folder: Path, **variables: str) -> tuple[float, float]:
    """Run `python train.py` with its run in `folder`. Return its last training loss and its seconds.

    Raises:
        RuntimeError: the run failed, or has logged no loss.
    """
    seconds = train_only(words, folder, **variables)
    return last_loss(folder), seconds


def train_only(words: Sequence[str], folder: Path, **variables: str) -> float:
    """Run `python train.py` with its run in `folder`. Return its seconds.

    Raises:
        RuntimeError: the run failed.
    """
    start = time.monotonic()
    command = (str(ROOT / "train.py"), f"hydra.run.dir={folder}", "tracker=local", *words)
    done = run(*command, cwd=folder.parent, **variables)
    if done.returncode:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr[-1200:]}")
    return time.monotonic() - start


def last_loss(folder: Path) -> float:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [row["train/loss"] for row in rows if "train/loss" in row]
    if not losses:
        raise RuntimeError(f"no row of {folder / 'metrics.jsonl'} has train/loss")
    return losses[-1]


def at_once(measure: Callable[[str], Iterable[Item]], titles: Sequence[str]) -> Iterator[Item]:
    """Measure `AT_ONCE` titles at a time. Yield the items of each, or why there are none."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures = {pool.submit(lambda title=title: list(measure(title))): title for title in titles}
        for future in as_completed(futures):
            error = future.exception()
            if error:
                yield Failure(futures[future], f"{type(error).__name__}: {error}")
            else:
                yield from future.result()
