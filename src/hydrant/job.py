"""What one run is told and what it answers: plain types that travel between processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hydrant.redaction import redacted_text
from hydrant.studies import Trial


@dataclass(frozen=True)
class Job:
    """One run to be done. `records` are Hydra's own files for `.hydra/`, by name."""

    config: Mapping[str, Any]  # resolved and checked
    folder: Path
    choices: Mapping[str, str | None]  # {"optimizer": "adamw", ...}
    records: Mapping[str, str]
    overrides: Sequence[str]  # of the task, as on the command line
    sweep_folder: Path | None  # of the sweep that it belongs to
    trial: Trial | None = None  # of the study that it belongs to

    def plain(self) -> dict[str, Any]:
        """As JSON can say it, for `from_plain`."""
        told = asdict(self)
        return told | {key: str(told[key]) for key in ("folder", "sweep_folder") if told[key] is not None}

    @classmethod
    def from_plain(cls, told: Mapping[str, Any]) -> Job:
        makers: dict[str, Callable[[Any], Any]] = {
            "folder": Path,
            "sweep_folder": Path,
            "trial": lambda trial: Trial(**trial),
        }
        made = {key: make(told[key]) for key, make in makers.items() if told[key] is not None}
        return cls(**{**told, **made})

    def same_command(self) -> str:
        """How to call Hydrant again so that it finds this run folder."""
        if self.config["name"] is not None:
            return "the same command"
        in_sweep = self.sweep_folder is not None
        key, folder = ("hydra.sweep.dir", self.sweep_folder) if in_sweep else ("hydra.run.dir", self.folder)
        return f"the same command with {key}={relative(folder or self.folder)}"


@dataclass(frozen=True)
class Result:
    """How a run ended. `value` is the best value of the deciding metric, for sweepers that search."""

    exit_status: int
    value: float | None
    message: str  # the last line on stderr; "" where all is well
    error: str = ""  # the type of what it failed by


def say(text: str) -> None:
    """Print a line, without secrets."""
    emit(redacted_text(text))


def emit(text: str) -> None:
    """Print what other programs read, as it is; a reader that went away (`| head`) does not concern the runs."""
    with suppress(BrokenPipeError):
        print(text, flush=True)


def report(result: Result, label: str = "") -> int:
    """Say on stderr what went wrong, if anything; the exit status."""
    if result.message:
        with suppress(BrokenPipeError):
            sys.stdout.flush()
        kind = "" if result.exit_status > 128 else "error: "
        print(f"{label}{kind}{redacted_text(' '.join(result.message.split()))}", file=sys.stderr, flush=True)
    return result.exit_status


def relative(path: Path) -> str:
    """A path as it is written from the current folder, if it lies there."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def missing_folders(folder: Path) -> list[Path]:
    """The folder and those above it that are not there, the inner first."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def remove_if_empty(folders: Iterable[Path]) -> None:
    """Take back folders that were made for a run that was refused, the inner first; only empty ones."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
