"""Run the program of a config in this process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import torch

TINY = (
    "tracker=local", "duration=7", "log_every=3", "eval_every=2", "save_every=3", "global_batch_size=32",
    "limit_train_samples=100", "limit_val_samples=50", "name=ejected",
)  # fmt: skip


@pytest.fixture
def unchanged_process() -> Generator[None]:
    """Restore what an ejected program sets in its process."""
    flags = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    yield
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = flags


def run_program(text: str, **names: Any) -> None:
    """Run a program in this process, in the working folder."""
    with contextlib.redirect_stdout(None):
        exec(compile(text, "<ejected>", "exec"), {"__name__": "__main__", **names})


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of a run without those numbers that are times."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "time" and not k.startswith("perf/")} for row in rows]
