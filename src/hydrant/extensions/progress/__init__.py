"""The progress of a run: a bar on a terminal or, with the run's pictures, below the cell of a notebook.

IPython is imported only there. For a sweep, the table of its runs, drawn again while they run.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, TextIO, cast

from hydrant.errors import HydrantError
from hydrant.sweeps.plan import sparing
from hydrant.sweeps.results_table import styled
from hydrant.terminal.console import Progress, console, format_duration, is_terminal
from hydrant.terminal.text import number

if TYPE_CHECKING:
    from rich.live import Live


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook, which shows pictures and a bar; not plain IPython."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def start(total: int, num_done: int, unit: str) -> Progress:
    """Return a bar, or what shows nothing without a terminal and without a notebook."""
    if in_notebook():
        return ProgressBar(total, num_done, _NotebookLine(), unit)
    return ProgressBar(total, num_done, _TerminalLine(), unit) if is_terminal(sys.stdout) else Progress()


REDRAW_SECONDS = 0.1
_TABLE_SECONDS = 0.5
_RATE_DRAWS = 100  # draws over which the rate of the updates is measured
_MIN_WIDTH = 12  # of the bar alone

Styled = tuple[str, str]
"""A text and the name of its style."""


class ProgressBar(Progress):
    """Shows updates, remaining time, loss, a validation metric, updates per second and lr, as far as there is room.

    The rate is that of the last seconds, with evaluations. It is left out when all is done, because the line below
    has that of the whole run.

    The bar is drawn at most 10 times a second, for the first time at the first call. Log lines for the same terminal,
    and what is printed, appear above it.

    >>> import contextlib
    >>> with contextlib.closing(Progress.start(500, 0)) as bar:  # no terminal: no output
    ...     bar.advance()
    ...     bar.log({"num_updates": 1, "train/loss": 0.71, "optim/lr": 1e-3})
    """

    def __init__(self, total: int, num_done: int, line: _TerminalLine | _NotebookLine, unit: str) -> None:
        self._total, self._done, self._line, self._unit = total, num_done, line, unit
        self._drawn = deque[tuple[float, int]](maxlen=_RATE_DRAWS)  # the time and update of each draw
        self._next_draw = 0.0
        self._values: dict[str, float] = {}

    def advance(self, count: int = 1) -> None:
        """Count an update, or several units. Takes about 0.3 us, because the training loop calls it."""
        self._done += count
        if monotonic() >= self._next_draw:
            self._draw()

    def log(self, row: Mapping[str, float]) -> None:
        """Show `train/loss`, `optim/lr` and the first validation metric but the loss at the next draw."""
        names = {"train/loss": "loss", "optim/lr": "lr"}
        metrics = [key for key in row if key.startswith("val/") and key != "val/loss"]
        names |= {key: key for key in metrics[:1]}
        self._values |= {name: row[key] for key, name in names.items() if key in row}
        if monotonic() >= self._next_draw:
            self._draw()

    def picture(self, path: Path) -> None:
        if isinstance(self._line, _NotebookLine):
            from IPython.display import Image, display

            display(Image(filename=str(path)))

    def close(self) -> None:
        """Draw the last state and end the line. May be called twice."""
        if self._drawn:
            self._draw()
            self._drawn.clear()
            self._line.close()

    def _draw(self) -> None:
        now = monotonic()
        self._drawn.append((now, self._done))
        self._line.draw(self._parts(self._line.width))
        self._next_draw = now + REDRAW_SECONDS

    def _parts(self, width: int) -> list[Styled]:
        """Return the texts of the line, with their styles; together they fill `width`, if it is wide enough."""
        (began, before), (now, _) = self._drawn[0], self._drawn[-1]
        rate = (self._done - before) / (now - began) if self._done > before else 0.0
        ratio = self._done / self._total
        left = f" {format_duration((self._total - self._done) / rate)} left" if rate else ""
        parts: list[Styled] = [
            (f"{math.floor(100 * ratio):>3}% ", ""),
            (f" {self._done:,}/{self._total:,}", "green"),
            (left, "cyan"),
        ]
        shown = {key: f"  {key} {number(value)}" for key, value in self._values.items()}
        loss, lr = shown.pop("loss", ""), shown.pop("lr", "")
        speed = f"  {number(rate, 3)} {self._unit}/s" if rate and ratio < 1 else ""
        extras = [loss, *shown.values(), speed, lr]
        room = width - _MIN_WIDTH - sum(len(text) for text, _ in parts)
        for text in extras:
            if len(text) <= room:
                parts.append((text, ""))
                room -= len(text)
        length = max(room + _MIN_WIDTH, 0)
        num_filled, (filled, rest) = int(length * ratio), self._line.characters
        bar = [(filled * num_filled, "magenta"), (rest * (length - num_filled), "bright_black")]
        return [parts[0], *bar, *parts[1:]]


class _TerminalLine:
    """The last line of a terminal, below everything that this process prints."""

    def __init__(self) -> None:
        self._live: Live | None = None
        self._streams: dict[logging.StreamHandler[TextIO], TextIO] = {}

    @property
    def width(self) -> int:
        return console().width

    @property
    def characters(self) -> tuple[str, str]:
        """What the bar is made of: the part that is done, and the rest."""
        filled = "━" if console().encoding.startswith("utf") else "#"
        return filled, " " if console().no_color or filled == "#" else filled

    def draw(self, parts: Sequence[Styled]) -> None:
        from rich.text import Text

        self._live = self._live or self._start()
        self._live.update(Text.assemble(*parts, no_wrap=True, overflow="crop"), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
        for handler, stream in self._streams.items():
            handler.setStream(stream)

    def _start(self) -> Live:
        from rich.live import Live

        live = Live(console=console(), auto_refresh=False, redirect_stderr=is_terminal(sys.stderr))
        self._streams = dict(_console_handlers())
        live.start()
        console().show_cursor(True)  # a process that is killed would leave the terminal without one
        for handler, stream in self._streams.items():
            is_stdout = stream is getattr(sys.stdout, "rich_proxied_file", None)
            handler.setStream(sys.stdout if is_stdout else sys.stderr)
        return live


class _NotebookLine:
    """The last line below the cell of a notebook."""

    width = 110
    characters = "━", " "

    def __init__(self) -> None:
        self._streams = dict(_console_handlers())
        for handler, stream in self._streams.items():
            handler.setStream(cast("TextIO", _AboveLine(stream, self.width)))

    def draw(self, parts: Sequence[Styled]) -> None:
        print("\r" + "".join(text for text, _ in parts), end="", flush=True)

    def close(self) -> None:
        print()
        for handler, stream in self._streams.items():
            handler.setStream(stream)


class _AboveLine:
    """A stream that clears the line before it writes; the bar is drawn again below."""

    def __init__(self, stream: TextIO, width: int) -> None:
        self._stream, self._width = stream, width

    def write(self, text: str) -> None:
        self._stream.write(f"\r{' ' * self._width}\r{text}")

    def flush(self) -> None:
        self._stream.flush()


def _console_handlers() -> Iterator[tuple[logging.StreamHandler[TextIO], TextIO]]:
    """Yield the log handlers that write to the terminal, of Hydrant's logger and the root, with their streams."""
    for logger in (logging.getLogger("hydrant"), logging.getLogger()):
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler):
                stream_handler = cast("logging.StreamHandler[TextIO]", handler)
                if stream_handler.stream in (sys.stdout, sys.stderr):
                    yield stream_handler, stream_handler.stream


@contextlib.contextmanager
def live_display(lines: Callable[[int, int], Sequence[str]]) -> Generator[None]:
    """Show lines at the bottom of the terminal, below everything this process prints; erase them at the end.

    Args:
        lines: returns the lines for a width and a height; called up to twice a second in a thread.
    """
    from rich.live import Live
    from rich.text import Text

    latest = Text()

    @sparing
    def read() -> None:
        nonlocal latest
        size = console().size
        with contextlib.suppress(OSError, HydrantError):  # unreadable now: the next drawing may succeed
            latest = styled(lines(size.width, size.height - 1))  # the last line is for the cursor

    def render() -> Text:
        read()
        return latest

    show = Live(
        console=console(),
        refresh_per_second=1 / _TABLE_SECONDS,
        transient=True,
        redirect_stderr=is_terminal(sys.stderr),
        get_renderable=render,
    )
    with show:
        console().show_cursor(True)  # a process that is killed would leave the terminal without one
        yield
