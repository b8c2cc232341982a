"""The line on the terminal that says how far a run is."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from time import monotonic
from typing import Any, TextIO, cast

from tqdm.std import tqdm

REDRAW_SECONDS = 0.1
LINE = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{remaining} left, {rate_noinv_fmt}{postfix}]"


class Progress:
    """Updates done, time left, updates per second, loss, lr and a validation metric.

    Drawn 10 times a second at most; log lines for the same terminal appear above it. It is closed also
    when the run is interrupted, so that the line ends and the log handlers get their streams back:

    >>> with Progress.start(total_updates=500, num_updates=0) as progress:   # silent: no terminal here
    ...     progress.advance()
    ...     progress.log({"num_updates": 1, "train/loss": 0.71, "optim/lr": 1e-3})
    """

    @staticmethod
    def start(total_updates: int, num_updates: int) -> Progress | NoProgress:
        """The bar, which begins at `num_updates`; a silent one if stdout is no terminal."""
        return Progress(total_updates, num_updates, sys.stdout) if sys.stdout.isatty() else NoProgress()

    def __init__(self, total_updates: int, num_updates: int, stream: TextIO) -> None:
        # Draws at every call of its `update`. When to call it is decided here: asking it costs 1 us.
        self._bar = _Bar(
            total=total_updates,
            initial=num_updates,
            file=stream,
            unit=" updates",
            bar_format=LINE,
            mininterval=0,
            miniters=1,
            smoothing=0.1,
            **_size(stream),
        )
        self._pending = 0  # updates the bar does not know of yet
        self._due = monotonic() + REDRAW_SECONDS
        self._shown: dict[str, str] = {}
        self._redirected = dict(_console_handlers())
        for handler, console in self._redirected.items():
            handler.setStream(cast("TextIO", _AboveBar(console)))

    def advance(self) -> None:
        """One update is done. About 0.3 us: it stands in the hot loop."""
        self._pending += 1
        if monotonic() >= self._due:
            self._bar.update(self._pending)
            self._pending = 0
            self._due = monotonic() + REDRAW_SECONDS

    def log(self, row: Mapping[str, float]) -> None:
        """Take `train/loss`, `optim/lr` and the first validation metric of a row, for the next redraw."""
        names = {"train/loss": "loss", "optim/lr": "lr"}
        names |= {key: key for key in [key for key in row if key.startswith("val/")][:1]}
        self._shown |= {name: f"{name} {row[key]:.4g}" for key, name in names.items() if key in row}
        self._bar.set_postfix_str(", ".join(self._shown.values()), refresh=False)

    def close(self) -> None:
        """Draw the last state, end the line, give the log handlers their streams back. Once is enough."""
        self._bar.n += self._pending
        self._pending = 0
        self._bar.close()
        for handler, console in self._redirected.items():
            handler.setStream(console)
        self._redirected = {}

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class NoProgress:
    """The same for a stdout that is no terminal: shows nothing."""

    def advance(self) -> None: ...

    def log(self, row: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> NoProgress:
        return self

    def __exit__(self, *_: object) -> None: ...


class _Bar(tqdm):  # pyright: ignore[reportMissingTypeArgument]  # generic in the stubs only
    monitor_interval = 0  # no watching thread: it would redraw by its own clock, and be forked into workers


class _AboveBar:
    """A console stream whose writes first take the bar away and then put it back below."""

    def __init__(self, console: TextIO) -> None:
        self._console = console

    def write(self, text: str) -> None:
        with _Bar.external_write_mode(file=self._console):
            self._console.write(text)

    def flush(self) -> None:
        self._console.flush()


def _size(stream: TextIO) -> dict[str, Any]:
    """How tqdm learns the width: at each redraw, or once if the terminal says 0 (it would draw nothing)."""
    with contextlib.suppress(OSError):
        if os.get_terminal_size(stream.fileno()).columns > 0:
            return {"dynamic_ncols": True}
    assumed = shutil.get_terminal_size()
    return {"ncols": assumed.columns, "nrows": assumed.lines}


def _console_handlers() -> Iterator[tuple[logging.StreamHandler[TextIO], TextIO]]:
    """What brings our messages to the terminal: handlers of our logger and of the root; their streams."""
    for logger in (logging.getLogger("hydrant"), logging.getLogger()):
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler):
                console = cast("logging.StreamHandler[TextIO]", handler)
                if console.stream in (sys.stdout, sys.stderr):
                    yield console, console.stream
