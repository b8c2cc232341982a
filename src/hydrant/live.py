"""A table in the terminal that follows a sweep."""

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
from hydrant.standing import Standing
from hydrant.tables import aligned

_DRAW_SECONDS = 0.5
_ERASE = "\x1b[J"  # all below
_RANKED = ("running", "running elsewhere", "failed", "refused", "damaged", "killed", "preempted", "queued",
           "not started", "finished")  # fmt: skip
"""Which runs a screen shows that has no room for all."""


def is_terminal() -> bool:
    """Whether stdout can show a table that changes."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def table(title: str, standings: Sequence[Standing], width: int, height: int | None = None) -> list[str]:
    """A line a run, no longer than `width`, in `height` lines with the headings; the most urgent if it is too low."""
    head = (
        f": {len(standings)} run{'s' * (len(standings) != 1)}: {_told(Counter(s.state for s in standings))}"
    )
    title = title if len(title + head) <= width else title.rpartition("/")[2]
    room = len(standings) if height is None else max(height - 3, 1)
    shown = _most_urgent(standings, room) if len(standings) > room else list(standings)
    cells = _columns(shown, {s.metric for s in standings if s.metric is not None})
    labels = _labels(shown, _differing([s.choices for s in standings]), max(width - 42, 16))
    lines = aligned([[label, *row] for label, row in zip(labels, cells, strict=True)], {0, 1, len(cells[0])})
    hidden = Counter(s.state for s in standings) - Counter(s.state for s in shown)
    lines += [f"and {_told(hidden)}"] if hidden else []
    return [_cut(line.rstrip(), width) for line in (title + head, *lines)]


def _labels(shown: Sequence[Standing], keys: Sequence[str], most: int) -> list[str]:
    """What tells the runs apart, below its headings; the rest of a row must be seen, too."""
    names = [[s.choices.get(key, "") for key in keys] if keys else [s.run] for s in shown]
    lines = aligned([keys or ["run"], *names], range(len(keys) or 1))
    return [_cut(line, most) for line in lines]


def _columns(shown: Sequence[Standing], metrics: Collection[str]) -> list[list[str]]:
    """How far the runs are, below the headings; nothing that no run has."""
    best = f"best {next(iter(metrics))}" if len(metrics) == 1 else "best"
    rows = [["state", "update", "loss", "left", best, ""], *map(_cells, shown)]
    filled = [n for n in range(6) if n < 2 or any(row[n] for row in rows[1:])]
    return [[row[n] for n in filled] for row in rows]


def _most_urgent(standings: Sequence[Standing], room: int) -> list[Standing]:
    def rank(position: int) -> int:
        state = standings[position].state
        return _RANKED.index(state) if state in _RANKED else len(_RANKED)

    chosen = sorted(range(len(standings)), key=rank)[: room - 1]  # one line tells of the rest
    return [standings[position] for position in sorted(chosen)]


def _cells(standing: Standing) -> list[str]:
    done, total = standing.num_updates, standing.total_updates
    update = "" if done is None else str(done) if total is None else f"{done:>{len(str(total))}}/{total}"
    loss = "" if standing.loss is None else f"{standing.loss:#.4g}"
    best = "" if standing.best is None else f"{standing.best:.4f} at {standing.best_num_updates}"
    left = duration(standing.seconds_left)
    return [f"{standing.state:<9}", update, loss, left, best, " ".join(standing.told.split())]


def duration(seconds: float | None) -> str:
    """A time that is left.

    >>> duration(59.2), duration(3723), duration(200000), duration(None)
    ('1:00', '1:02:03', '55:33:20', '')
    """
    if seconds is None:
        return ""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _differing(choices: Sequence[Mapping[str, str]]) -> list[str]:
    """The keys in which the choices differ."""
    keys = list(dict.fromkeys(key for own in choices for key in own))
    return [key for key in keys if len({own.get(key) for own in choices}) > 1]


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[state]} {state}" for state in sorted(counts, key=_order))


def _order(state: str) -> tuple[bool, int, str]:
    known = ("finished", "running", "queued")
    return state not in known, known.index(state) if state in known else 0, state


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: max(width - 1, 0)]}…"


@contextlib.contextmanager
def drawn(lines: Callable[[int, int], Sequence[str]]) -> Generator[None]:
    """While it lasts, lines for a width and a height stand below whatever this process prints; then they are gone."""
    screen = _Screen(lines, sys.stdout)
    with contextlib.ExitStack() as streams:
        streams.enter_context(contextlib.redirect_stdout(cast("TextIO", _Above(screen, sys.stdout))))
        if sys.stderr.isatty():
            streams.enter_context(contextlib.redirect_stderr(cast("TextIO", _Above(screen, sys.stderr))))
        drawing = threading.Thread(target=screen.follow, daemon=True)
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
        self._is_line_begun = False  # by what is printed above
        self._busy = threading.RLock()
        self.is_over = threading.Event()

    def follow(self) -> None:
        while not self.is_over.wait(_DRAW_SECONDS):
            size = shutil.get_terminal_size()
            with contextlib.suppress(OSError, HydrantError):  # the next time, perhaps
                self._draw(self._lines(size.columns, size.lines - 1))  # the cursor stands below them

    def erase(self) -> None:
        self._draw([])

    def print(self, text: str, stream: TextIO) -> None:
        with self._busy:
            self.erase()
            self._is_line_begun = not text.endswith("\n")
            stream.write(text)

    def _draw(self, lines: Sequence[str]) -> None:
        with self._busy, contextlib.suppress(OSError):  # the terminal was closed: of no concern to the runs
            if self._is_line_begun:
                return
            away = f"\r\x1b[{self._num_drawn}A{_ERASE}" if self._num_drawn else ""
            self._terminal.write(away + "".join(f"{line}\n" for line in lines))
            self._terminal.flush()
            self._num_drawn = len(lines)


class _Above:
    """A stream to the terminal, what is written to which appears above the lines."""

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
