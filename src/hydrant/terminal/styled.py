"""Output on a terminal: colours, and lines above a live display. Imports rich, only where there is a terminal."""

from __future__ import annotations

import functools
import logging
import math
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, TextIO

from hydrant.errors import log
from hydrant.terminal.console import is_terminal, say

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_LABEL_WIDTH = 10
_PIPE_WIDTH = 10_000  # with FORCE_COLOR: no line is broken


def console() -> Console:
    """Return the console of stdout: one for each stream, so that a live display stays below what others print."""
    return _console_of(getattr(sys.stdout, "rich_proxied_file", sys.stdout))


def has_style(stream: TextIO) -> bool:
    """Return whether text on a stream may have colours: on a terminal, or if FORCE_COLOR is set."""
    return is_terminal(stream) or bool(os.environ.get("FORCE_COLOR"))


def log_fields(fields: Mapping[str, str]) -> None:
    """Log a line for each field, with its label in front."""
    for label, text in fields.items():
        log.info(f"%-{_LABEL_WIDTH}s  %s", label, text, extra={"field": (label, text)})


def say_fields(fields: Mapping[str, str]) -> None:
    """Print a line for each field, as `log_fields` does, but leave the log as it is."""
    for label, text in fields.items():
        say(f"{label:<{_LABEL_WIDTH}}  {text}")


class TerminalHandler(logging.Handler):
    """Logs to the console of stdout: warnings in colour, the text of a field beside its label."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = self.format(record)
            label, _ = getattr(record, "field", ("", ""))
            console().print(_field(label, message) if label else _line(message, record.levelno))
        except Exception:
            self.handleError(record)


def format_duration(seconds: float | None) -> str:
    """Return a duration as h:mm:ss, or m:ss below an hour.

    >>> format_duration(59.2), format_duration(3723), format_duration(200000), format_duration(None)
    ('1:00', '1:02:03', '55:33:20', '')
    """
    if seconds is None:
        return ""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@functools.lru_cache(maxsize=1)
def _console_of(stream: TextIO) -> Console:
    from rich.console import Console

    width = None if is_terminal(stream) else _PIPE_WIDTH
    return Console(file=stream, width=width, highlight=False, markup=False, emoji=False, force_jupyter=False)


def _line(message: str, level: int) -> RenderableType:
    from rich.text import Text

    return Text(message, style="yellow" if level >= logging.WARNING else "")


def _field(label: str, message: str) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=_LABEL_WIDTH, style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(label, Text(message[_LABEL_WIDTH + 2 :]))
    return grid
