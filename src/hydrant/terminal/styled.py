"""Output on a terminal: colours, and lines above a live display. Imports rich, only where there is a terminal."""

from __future__ import annotations

import functools
import logging
import math
import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TextIO

from hydrant.errors import log
from hydrant.terminal.console import is_terminal, say
from hydrant.terminal.numbers import digits_of

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


def format_metric(value: float, sign: str = "", beside: Iterable[float | None] = ()) -> str:
    """Return a metric's value with four decimals, or with four digits where decimals would hide a small one.

    A large value gets eight digits, because float32 has no more, and any gets more digits if the values that are shown
    `beside` it need them. `sign="+"` also marks what is positive.

    >>> format_metric(0.97), format_metric(0.0012345), format_metric(0.00001234), format_metric(0.25, sign="+")
    ('0.9700', '0.001234', '1.234e-05', '+0.2500')
    >>> format_metric(9999.125), format_metric(260120950.2477)
    ('9999.1250', '260120950')
    >>> format_metric(0.9000002, beside=[0.9000001, 0.9000002]), format_metric(0.97, beside=[0.96, 0.97])
    ('0.90000020', '0.9700')
    """
    digits = digits_of(beside)
    if not (1e-2 <= abs(value) < 1e15 or value == 0):
        return f"{value:{sign}.{digits}g}"
    power = math.floor(math.log10(abs(value))) if value else 0
    decimals = max(min(7 - power, 4), digits - 1 - power if digits > 4 else 0, 0)
    return f"{value:{sign}.{decimals}f}"


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
