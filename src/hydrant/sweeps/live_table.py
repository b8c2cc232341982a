"""The table in the terminal that shows the progress of a sweep."""

from __future__ import annotations

import contextlib
import math
import sys
import textwrap
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import TYPE_CHECKING

from hydrant.errors import HydrantError
from hydrant.files.redaction import public
from hydrant.runs.folder import RunStatus
from hydrant.sweeps.progress import RunProgress
from hydrant.sweeps.sparing import sparing
from hydrant.terminal.console import is_terminal
from hydrant.terminal.numbers import format_metric, number
from hydrant.terminal.styled import console, format_duration
from hydrant.terminal.text_table import align_columns

if TYPE_CHECKING:
    from rich.text import Text

_DRAW_SECONDS = 0.5
_BY_URGENCY = (RunStatus.RUNNING, RunStatus.RUNNING_ELSEWHERE, RunStatus.STARTING, RunStatus.FAILED, RunStatus.REFUSED,
               RunStatus.DAMAGED, RunStatus.KILLED, RunStatus.PREEMPTED, RunStatus.FINISHED, RunStatus.PRUNED,
               RunStatus.STOPPED, RunStatus.QUEUED, RunStatus.NOT_STARTED)  # fmt: skip
"""The states in the order of urgency. If the terminal is too short for all runs, it shows the first ones."""

_STYLES = {
    "green": (RunStatus.FINISHED,),
    "cyan": (RunStatus.STARTING, RunStatus.RUNNING, RunStatus.RUNNING_ELSEWHERE),
    "red": (RunStatus.FAILED, RunStatus.REFUSED, RunStatus.DAMAGED, RunStatus.KILLED),
    "yellow": (RunStatus.PREEMPTED, RunStatus.PRUNED, RunStatus.STOPPED),
    "bright_black": (RunStatus.QUEUED, RunStatus.NOT_STARTED),
}

_COUNTED_FIRST = (RunStatus.FINISHED, RunStatus.RUNNING, RunStatus.QUEUED)


def render_table(
    title: str,
    runs: Sequence[RunProgress],
    width: int,
    height: int | None = None,
    mode: str = "",
    *,
    reasons_below: bool = False,
    rest: str = "",
) -> list[str]:
    """Return the lines of the table: title, column names and a line per run, each at most `width` long.

    If `height` lines are too few, they show the most urgent runs, and of runs in the same state the best by `mode`.
    The last line then counts the others, followed by `rest`.

    Args:
        reasons_below: show why a run failed on lines below it; else in a column, cut where the line ends.
    """
    states = Counter(run.state for run in runs)
    summary = f": {len(runs)} run{'s' * (len(runs) != 1)}: {format_counts(states)}"
    title = title if len(title + summary) <= width else title.rpartition("/")[2]
    reasons = [_reason(run.message, width) if reasons_below else [] for run in runs]
    places = list(range(len(runs)))
    if height is not None and len(runs) + sum(map(len, reasons)) > (room := max(height - 2, 1)):
        places = most_urgent([(run.state, run.best) for run in runs], len(runs), mode)
        ends = list(accumulate(1 + len(reasons[n]) for n in places))
        places = sorted(places[: bisect(ends, room - 1)])  # the last line counts the hidden runs
    shown = [runs[n] for n in places]
    if reasons_below:
        shown = [replace(run, message="") for run in shown]
    cells = _columns(shown, {run.metric for run in runs if run.metric is not None})
    labels = _labels(shown, _differing_keys([run.choices for run in runs]), max(width - 42, 16))
    rows = [[label, *row] for label, row in zip(labels, cells, strict=True)]
    names, *aligned = align_columns(rows, {0, 1, len(cells[0])})
    lines = [
        names,
        *chain.from_iterable([line, *reasons[n]] for n, line in zip(places, aligned, strict=True)),
    ]
    hidden = states - Counter(run.state for run in shown)
    lines += [_cut(f"and {format_counts(hidden)}", width - len(rest)) + rest] if hidden else []
    return [_cut(public(line.rstrip()), width) for line in (title + summary, *lines)]


def _reason(message: str, width: int) -> list[str]:
    """Return the lines that say why a run failed, broken between words."""
    text, indent = " ".join(public(message).split()), "    "
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def _labels(shown: Sequence[RunProgress], keys: Sequence[str], width: int) -> list[str]:
    """Return the first column: the choices that differ, else the run's name, cut to leave room for the others."""
    names = [[run.choices.get(key, "") for key in keys] if keys else [run.run] for run in shown]
    lines = align_columns([keys or ["run"], *names], range(len(keys) or 1))
    return [_cut(line, width) for line in lines]


def _columns(shown: Sequence[RunProgress], metrics: Collection[str]) -> list[list[str]]:
    """Return the other columns with their names, without those that are empty for every run."""
    best = f"best {next(iter(metrics))}" if len(metrics) == 1 else "best"
    values = [run.best for run in shown]
    rows = [["state", "update", "loss", "left", best, ""], *(_cells(run, values) for run in shown)]
    filled = [n for n in range(6) if n < 2 or any(row[n] for row in rows[1:])]
    return [[row[n] for n in filled] for row in rows]


def most_urgent(runs: Sequence[tuple[str, float | None]], count: int, mode: str) -> list[int]:
    """Return the places of the most urgent runs, given by state and best value; in the same state, the best first.

    `mode` says whether `min` or `max` is the best; "" keeps the order.

    >>> most_urgent([("finished", 0.5), ("finished", 0.9), ("failed", None), ("finished", 0.7)], 3, "max")
    [2, 1, 3]
    """

    def rank(place: int) -> tuple[int, float]:
        state, best = runs[place]
        value = math.inf if best is None else {"min": best, "max": -best}.get(mode, 0.0)
        return _position(state, _BY_URGENCY), value

    return sorted(range(len(runs)), key=rank)[:count]


def _cells(run: RunProgress, values: Sequence[float | None]) -> list[str]:
    done, total = run.num_updates, run.total_updates
    update = "" if done is None else str(done) if total is None else f"{done:>{len(str(total))}}/{total}"
    loss = "" if run.loss is None else f"{run.loss:#.4g}" if abs(run.loss) < 999 else number(run.loss)
    best = "" if run.best is None else f"{format_metric(run.best, beside=values)} at {run.best_num_updates}"
    left = format_duration(run.seconds_left)
    return [f"{run.state:<9}", update, loss, left, best, " ".join(run.message.split())]


def _differing_keys(choices: Sequence[Mapping[str, str]]) -> list[str]:
    keys = dict.fromkeys(key for run_choices in choices for key in run_choices)
    return [key for key in keys if len({run_choices.get(key) for run_choices in choices}) > 1]


def format_counts(counts: Mapping[str, int]) -> str:
    states = sorted(counts, key=lambda state: (_position(state, _COUNTED_FIRST), state))
    return ", ".join(f"{counts[state]} {state}" for state in states)


def _position(state: str, order: Sequence[str]) -> int:
    return order.index(state) if state in order else len(order)


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: max(width - 1, 0)]}…"


def styled(lines: Sequence[str]) -> Text:
    """Return the lines of tables with colours for the states of the runs."""
    from rich.text import Text

    text = Text("\n".join(lines), no_wrap=True)
    for style, states in _STYLES.items():
        text.highlight_words([f" {state} " for state in states], style)
    return text


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
        refresh_per_second=1 / _DRAW_SECONDS,
        transient=True,
        redirect_stderr=is_terminal(sys.stderr),
        get_renderable=render,
    )
    with show:
        console().show_cursor(True)  # a process that is killed would leave the terminal without one
        yield
