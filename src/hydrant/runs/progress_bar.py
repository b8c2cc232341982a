"""The progress bar of a run on a terminal."""

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

from hydrant.runs.notebook import in_notebook

REDRAW_SECONDS = 0.1


class ProgressBar:
    """Shows updates, remaining time, updates per second, loss, lr and a validation metric.

    The bar is drawn at most 10 times a second. Log lines for the same terminal appear above it.

    >>> with contextlib.closing(ProgressBar.start(total_updates=500, num_updates=0)) as bar:  # no terminal: no output
    ...     bar.advance()
    ...     bar.log({"num_updates": 1, "train/loss": 0.71, "optim/lr": 1e-3})
    """

    @staticmethod
    def start(total_updates: int, num_updates: int) -> ProgressBar | NullProgressBar:
        """Return a bar that starts at `num_updates`, or one that shows nothing without a terminal or a notebook."""
        if sys.stdout.isatty() or in_notebook():
            return ProgressBar(total_updates, num_updates, sys.stdout)
        return NullProgressBar()

    def __init__(self, total_updates: int, num_updates: int, stream: TextIO) -> None:
        # tqdm draws at every call of `update`, and `advance` decides when: tqdm's own decision takes 1 us.
        self._bar = _Bar(
            total=total_updates,
            initial=num_updates,
            file=stream,
            unit=" updates",
            bar_format="{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{remaining} left, {rate_noinv_fmt}{postfix}]",
            mininterval=0,
            miniters=1,
            smoothing=0.1,
            **_size(stream),
        )
        self._pending = 0  # updates that the bar does not show yet
        self._next_draw = monotonic() + REDRAW_SECONDS
        self._shown: dict[str, str] = {}
        self._streams = dict(_console_handlers())
        for handler, console in self._streams.items():
            handler.setStream(cast("TextIO", _AboveBar(console)))

    def advance(self) -> None:
        """Count one update. Takes about 0.3 us, because the training loop calls it."""
        self._pending += 1
        if monotonic() >= self._next_draw:
            self._bar.update(self._pending)
            self._pending = 0
            self._next_draw = monotonic() + REDRAW_SECONDS

    def log(self, row: Mapping[str, float]) -> None:
        """Show `train/loss`, `optim/lr` and the first validation metric of a row at the next draw."""
        names = {"train/loss": "loss", "optim/lr": "lr"}
        names |= {key: key for key in [key for key in row if key.startswith("val/")][:1]}
        self._shown |= {name: f"{name} {row[key]:.4g}" for key, name in names.items() if key in row}
        self._bar.set_postfix_str(", ".join(self._shown.values()), refresh=False)

    def close(self) -> None:
        """Draw the last state, end the line, and give the log handlers their streams back. May be called twice."""
        self._bar.n += self._pending
        self._pending = 0
        self._bar.close()
        for handler, console in self._streams.items():
            handler.setStream(console)
        self._streams = {}


class NullProgressBar:
    """Replaces `ProgressBar` without a terminal and without a notebook: shows nothing."""

    def advance(self) -> None: ...

    def log(self, row: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class _Bar(tqdm):  # pyright: ignore[reportMissingTypeArgument]  # generic in the stubs only
    monitor_interval = 0  # no monitor thread: it would redraw at its own times and be forked into workers


class _AboveBar:
    """A console stream that clears the bar before each write and redraws it below."""

    def __init__(self, console: TextIO) -> None:
        self._console = console

    def write(self, text: str) -> None:
        with _Bar.external_write_mode(file=self._console):
            self._console.write(text)

    def flush(self) -> None:
        self._console.flush()


def _size(stream: TextIO) -> dict[str, Any]:
    """Return tqdm's size options: dynamic, or fixed if the terminal reports 0 columns, where tqdm draws nothing."""
    with contextlib.suppress(OSError):
        if os.get_terminal_size(stream.fileno()).columns > 0:
            return {"dynamic_ncols": True}
    default = shutil.get_terminal_size()
    return {"ncols": default.columns, "nrows": default.lines}


def _console_handlers() -> Iterator[tuple[logging.StreamHandler[TextIO], TextIO]]:
    """Yield the log handlers that write to the terminal, of Hydrant's logger and the root, with their streams."""
    for logger in (logging.getLogger("hydrant"), logging.getLogger()):
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler):
                console = cast("logging.StreamHandler[TextIO]", handler)
                if console.stream in (sys.stdout, sys.stderr):
                    yield console, console.stream
