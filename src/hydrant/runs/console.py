"""Print to stdout: lines for people, data for programs. Print to stderr: notices. A closed pipe ends no run."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from hydrant.config.redaction import redacted_text


def say(text: str) -> None:
    """Print a line, without secrets."""
    emit(redacted_text(text))


def emit(text: str) -> None:
    """Print data for programs as it is. A closed pipe (`| head`) is ignored, because the runs continue."""
    with suppress(BrokenPipeError):
        print(text, flush=True)


def notice(text: str) -> None:
    """Print a line to stderr, without secrets. A closed pipe (`2>&1 | head`) is ignored."""
    with suppress(BrokenPipeError):
        print(redacted_text(text), file=sys.stderr, flush=True)


def relative(path: Path) -> str:
    """Return a path relative to the current folder if it is in it, else as it is."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
