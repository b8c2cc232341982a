"""The table in the terminal that shows the progress of a sweep."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import TextIO, cast

from hydrant.errors import HydrantError
from hydrant.runs.console import public
from hydrant.runs.folder import RunStatus
from hydrant.sweeps.progress import RunProgress
from hydrant.training.text_table import align_columns

_DRAW_SECONDS = 0.5
_ERASE_BELOW = "\x1b[J"
_BY_URGENCY = (RunStatus.RUNNING, RunStatus.RUNNING_ELSEWHERE, RunStatus.FAILED, RunStatus.REFUSED, RunStatus.DAMAGED,
               RunStatus.KILLED, RunStatus.PREEMPTED, RunStatus.QUEUED, RunStatus.NOT_STARTED,
               RunStatus.FINISHED)  # fmt: skip
"""Most urgent first: shown when the terminal is too short for all runs."""

_COUNTED_FIRST = (RunStatus.FINISHED, RunStatus.RUNNING, RunStatus.QUEUED)


def is_terminal() -> bool:
    """Return whether stdout is a terminal that can redraw the table."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def render_table(title: str, runs: Sequence[RunProgress], width: int, height: int | None = None) -> list[str]:
    """Return the lines of the table: title, column names and a line per run, each at most `width` long.

    If `height` lines are too few, they show the most urgent runs.
    """
    states = Counter(run.state for run in runs)
    summary = f": {len(runs)} run{'s' * (len(runs) != 1)}: {_format_counts(states)}"
    title = title if len(title + summary) <= width else title.rpartition("/")[2]
    room = len(runs) if height is None else max(height - 3, 1)
    shown = _most_urgent(runs, room) if len(runs) > room else list(runs)
    cells = _columns(shown, {run.metric for run in runs if run.metric is not None})
    labels = _labels(shown, _differing_keys([run.choices for run in runs]), max(width - 42, 16))
    rows = [[label, *row] for label, row in zip(labels, cells, strict=True)]
    lines = align_columns(rows, {0, 1, len(cells[0])})
    hidden = states - Counter(run.state for run in shown)
    lines += [f"and {_format_counts(hidden)}"] if hidden else []
    return [_cut(public(line.rstrip()), width) for line in (title + summary, *lines)]


def _labels(shown: Sequence[RunProgress], keys: Sequence[str], width: int) -> list[str]:
    """Return the first column: the choices that differ, else the run's name, cut to leave room for the others."""
    names = [[run.choices.get(key, "") for key in keys] if keys else [run.run] for run in shown]
    lines = align_columns([keys or ["run"], *names], range(len(keys) or 1))
    return [_cut(line, width) for line in lines]


def _columns(shown: Sequence[RunProgress], metrics: Collection[str]) -> list[list[str]]:
    """Return the other columns with their names, without those that are empty for every run."""
    best = f"best {next(iter(metrics))}" if len(metrics) == 1 else "best"
    rows = [["state", "update", "loss", "left", best, ""], *map(_cells, shown)]
    filled = [n for n in range(6) if n < 2 or any(row[n] for row in rows[1:])]
    return [[row[n] for n in filled] for row in rows]


def _most_urgent(runs: Sequence[RunProgress], room: int) -> list[RunProgress]:
    by_urgency = sorted(range(len(runs)), key=lambda n: _position(runs[n].state, _BY_URGENCY))
    return [runs[n] for n in sorted(by_urgency[: room - 1])]  # the last line counts the hidden runs


def _cells(run: RunProgress) -> list[str]:
    done, total = run.num_updates, run.total_updates
    update = "" if done is None else str(done) if total is None else f"{done:>{len(str(total))}}/{total}"
    loss = "" if run.loss is None else f"{run.loss:#.4g}"
    best = "" if run.best is None else f"{run.best:.4f} at {run.best_num_updates}"
    left = format_duration(run.seconds_left)
    return [f"{run.state:<9}", update, loss, left, best, " ".join(run.message.split())]


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


def _differing_keys(choices: Sequence[Mapping[str, str]]) -> list[str]:
    keys = dict.fromkeys(key for run_choices in choices for key in run_choices)
    return [key for key in keys if len({run_choices.get(key) for run_choices in choices}) > 1]


def _format_counts(counts: Mapping[str, int]) -> str:
    states = sorted(counts, key=lambda state: (_position(state, _COUNTED_FIRST), state))
    return ", ".join(f"{counts[state]} {state}" for state in states)


def _position(state: str, order: Sequence[str]) -> int:
    return order.index(state) if state in order else len(order)


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: max(width - 1, 0)]}…"


@contextlib.contextmanager
def live_display(lines: Callable[[int, int], Sequence[str]]) -> Generator[None]:
    """Show lines at the bottom of the terminal, below everything this process prints; erase them at the end.

    Args:
        lines: returns the lines for a width and a height; called twice a second in a thread.
    """
    screen = _Screen(lines, sys.stdout)
    with contextlib.ExitStack() as streams:
        streams.enter_context(contextlib.redirect_stdout(cast("TextIO", _StreamAbove(screen, sys.stdout))))
        if sys.stderr.isatty():
            streams.enter_context(
                contextlib.redirect_stderr(cast("TextIO", _StreamAbove(screen, sys.stderr)))
            )
        drawing = threading.Thread(target=screen.redraw, daemon=True)
        drawing.start()
        try:
            yield
        finally:
            screen.is_over.set()
            drawing.join()
            screen.erase()


class _Screen:
    """The lines at the bottom of a terminal."""

    def __init__(self, lines: Callable[[int, int], Sequence[str]], terminal: TextIO) -> None:
        self._lines, self._terminal = lines, terminal
        self._num_drawn = 0
        self._is_line_begun = False  # what was printed above does not end with a newline yet
        self._lock = threading.RLock()
        self.is_over = threading.Event()

    def redraw(self) -> None:
        """Draw the lines again and again, until `is_over` is set."""
        while not self.is_over.wait(_DRAW_SECONDS):
            size = shutil.get_terminal_size()
            with contextlib.suppress(OSError, HydrantError):  # unreadable now: the next drawing may succeed
                self._draw(self._lines(size.columns, size.lines - 1))  # the last line is for the cursor

    def erase(self) -> None:
        self._draw([])

    def print(self, text: str, stream: TextIO) -> None:
        with self._lock:
            self.erase()
            self._is_line_begun = not text.endswith("\n")
            stream.write(text)

    def _draw(self, lines: Sequence[str]) -> None:
        with self._lock:
            if self._is_line_begun:
                return
            erase = f"\r\x1b[{self._num_drawn}A{_ERASE_BELOW}" if self._num_drawn else ""
            self._terminal.write(erase + "".join(f"{line}\n" for line in lines))
            self._terminal.flush()
            self._num_drawn = len(lines)


class _StreamAbove:
    """A stream to the terminal whose text appears above the lines of a screen."""

    def __init__(self, screen: _Screen, stream: TextIO) -> None:
        self._screen, self._stream = screen, stream

    def write(self, text: str) -> int:
        if text:
            self._screen.print(text, self._stream)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()
