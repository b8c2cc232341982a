"""What one run is told and what it answers: plain types that travel between processes."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """One run to be done. `records` are Hydra's own files for `.hydra/`, by name."""

    config: Mapping[str, Any]  # resolved and checked
    folder: Path
    choices: Mapping[str, str | None]  # {"optimizer": "adamw", ...}
    records: Mapping[str, str]
    is_in_sweep: bool


@dataclass(frozen=True)
class Result:
    """How a run ended. `value` is the best value of the deciding metric, for sweepers that search."""

    exit_status: int
    value: float | None
    message: str  # the last line on stderr; "" where all is well


def report(result: Result) -> int:
    """Say on stderr what went wrong, if anything; the exit status."""
    if result.message:
        sys.stdout.flush()
        label = "" if result.exit_status > 128 else "error: "
        print(f"{label}{' '.join(result.message.split())}", file=sys.stderr, flush=True)
    return result.exit_status


def missing_folders(folder: Path) -> list[Path]:
    """The folder and those above it that are not there, the inner first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def remove_if_empty(folders: Iterable[Path]) -> None:
    """Take back folders that were made for a run that was refused, the inner first; only empty ones."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
