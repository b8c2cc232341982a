"""What one run is told and what it answers: plain types that travel between processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
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


def remove_if_empty(folder: Path) -> None:
    """Take back the folder that Hydra made for a run that was refused; only if nothing is in it."""
    with suppress(OSError):
        os.removedirs(folder)
