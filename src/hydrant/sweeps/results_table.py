"""The table of a sweep's runs in the terminal, while they run and at their end, and the lines below it."""

import math
import shlex
import sys
import textwrap
from bisect import bisect
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING

from hydrant.config.metric_keys import differing_definitions
from hydrant.files.redaction import public
from hydrant.installation import entry_points
from hydrant.records import RunProgress
from hydrant.runs.folder import SWEEP_PICTURE, SWEEP_TABLE, RunStatus
from hydrant.terminal.console import console, format_duration, has_style, relative, say
from hydrant.terminal.text import align_columns, format_metric, number

if TYPE_CHECKING:
    from rich.text import Text


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
    rest: str = "",
) -> list[str]:
    """Return the lines of the table: title, column names and a line per run, each at most `width` long.

    Below a run that failed is why. If `height` lines are too few, they show the most urgent runs, and of runs in the
    same state the best by `mode`. The last line then counts the others, followed by `rest`.
    """
    states = Counter(run.state for run in runs)
    summary = f": {len(runs)} run{'s' * (len(runs) != 1)}: {format_counts(states)}"
    title = title if len(title + summary) <= width else title.rpartition("/")[2]
    reasons = [_reason(run.message, width) for run in runs]
    places = list(range(len(runs)))
    if height is not None and len(runs) + sum(map(len, reasons)) > (room := max(height - 2, 1)):
        places = by_urgency(runs, mode)
        ends = list(accumulate(1 + len(reasons[n]) for n in places))
        places = sorted(places[: bisect(ends, room - 1)])  # the last line counts the hidden runs
    shown = [runs[n] for n in places]
    cells = _live_columns(shown, {run.metric for run in runs if run.metric is not None})
    labels = _labels(shown, runs, max(width - 42, 16))
    rows = [[label, *row] for label, row in zip(labels, cells, strict=True)]
    names, *aligned = align_columns(rows, {0, 1})
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


def _labels(shown: Sequence[RunProgress], runs: Sequence[RunProgress], width: int) -> list[str]:
    """Return the first column: the choices that differ, else the run's name, cut to leave room for the others."""
    every = dict.fromkeys(key for run in runs for key in run.choices)
    keys = [key for key in every if len({run.choices.get(key) for run in runs}) > 1]
    names = [[run.choices.get(key, "") for key in keys] if keys else [run.run] for run in shown]
    lines = align_columns([keys or ["run"], *names], range(len(keys) or 1))
    return [_cut(line, width) for line in lines]


def _live_columns(shown: Sequence[RunProgress], metrics: Collection[str]) -> list[list[str]]:
    """Return the other columns with their names, without those that are empty for every run."""
    best = f"best {next(iter(metrics))}" if len(metrics) == 1 else "best"
    values = [run.best for run in shown]
    rows = [["state", "update", "loss", "left", best], *(_cells(run, values) for run in shown)]
    filled = [n for n in range(5) if n < 2 or any(row[n] for row in rows[1:])]
    return [[row[n] for n in filled] for row in rows]


def by_urgency(runs: Sequence[RunProgress], mode: str) -> list[int]:
    """Return the places of the runs, the most urgent first; in the same state, the best first.

    `mode` says whether `min` or `max` is the best; "" keeps the order.

    >>> runs = [RunProgress("", "", {}, state, best=best) for state, best in [("finished", 0.5), ("failed", 0.1)]]
    >>> by_urgency(runs, "max")
    [1, 0]
    """

    def rank(place: int) -> tuple[int, float]:
        best = runs[place].best
        value = math.inf if best is None else {"min": best, "max": -best}.get(mode, 0.0)
        return _position(runs[place].state, _BY_URGENCY), value

    return sorted(range(len(runs)), key=rank)


def _cells(run: RunProgress, values: Sequence[float | None]) -> list[str]:
    done, total = run.num_updates, run.total_updates
    update = "" if done is None else str(done) if total is None else f"{done:>{len(str(total))}}/{total}"
    loss = "" if run.loss is None else f"{run.loss:#.4g}" if abs(run.loss) < 999 else number(run.loss)
    best = "" if run.best is None else f"{format_metric(run.best, beside=values)} at {run.best_num_updates}"
    left = format_duration(run.seconds_left)
    return [f"{run.state:<9}", update, loss, left, best]


def format_counts(counts: Mapping[str, int]) -> str:
    states = sorted(counts, key=lambda state: (_position(state, _COUNTED_FIRST), state))
    return ", ".join(f"{counts[state]} {state}" for state in states)


def _position(state: str, order: Sequence[str]) -> int:
    return order.index(state) if state in order else len(order)


def _cut(line: str, width: int) -> str:
    return line if len(line) <= width else f"{line[: max(width - 1, 0)]}…"


def styled(lines: Sequence[str]) -> "Text":
    """Return the lines of tables with colours for the states of the runs."""
    from rich.text import Text

    text = Text("\n".join(lines), no_wrap=True)
    for style, states in _STYLES.items():
        text.highlight_words([f" {state} " for state in states], style)
    return text


MAX_PRINTED = 20
"""The most runs of a table that a sweep prints at its end."""


def print_runs(
    folder: str, runs: Sequence[RunProgress], height: int | None, mode: str = "", rest: str = ""
) -> None:
    """Print the table of a sweep's runs, with the reasons of failures. The arguments are those of `render_table`."""
    has_colours = has_style(sys.stdout)
    width = console().width if has_colours else sys.maxsize
    lines = render_table(folder, runs, width, height, mode, rest)
    if has_colours:
        console().print(styled(lines))
    else:
        say("\n".join(lines))


def best_run(runs: Sequence[RunProgress], mode: str) -> RunProgress | None:
    """Return the best finished run; None if there is none, or the losses of runs are different quantities."""
    values = [run for run in runs if run.best is not None and run.state == RunStatus.FINISHED]
    metrics = {run.metric for run in values if run.metric is not None}
    keys = {key for run in runs for key in run.choices}  # a later command may have added one
    choices = [{**dict.fromkeys(keys), **run.choices} for run in runs]
    if not mode or any(differing_definitions(metric, choices) for metric in metrics):
        return None
    return (min if mode == "min" else max)(values, key=lambda run: run.best or 0.0, default=None)


def closing_fields(
    folder: Path, runs: Sequence[RunProgress], seconds: float, best: RunProgress | None
) -> dict[str, str]:
    """Return the last lines of a sweep by their labels: its best run, its duration, and what shows more."""
    name, fields = relative(folder), dict[str, str]()
    values = [run.best for run in runs if run.best is not None]
    if best is not None and best.best is not None:
        choices = differing_choices([run.choices for run in runs])[list(runs).index(best)]
        label = " ".join(map("=".join, choices.items())) or best.run
        value = format_metric(best.best, beside=values)
        fields["best value"] = f"{label}: {best.metric} {value} at update {best.best_num_updates}"
    fields |= {"duration": format_duration(seconds), "results": f"{name}/{SWEEP_TABLE}"}
    if (folder / SWEEP_PICTURE).exists():
        fields["curves"] = f"{name}/{SWEEP_PICTURE}"
    is_compared = len(values) > 1 and "compare" in entry_points("hydrant.commands")
    return fields | ({"compare": f"hydrant compare {shlex.quote(name)}"} if is_compared else {})


def differing_choices(
    choices: Sequence[Mapping[str, str]], without: Collection[str] = ()
) -> list[dict[str, str]]:
    """Return of each run the choices in which it differs from others, but the keys `without`."""
    shared = set.intersection(*(set(of_run.items()) for of_run in choices))
    return [{k: v for k, v in run.items() if (k, v) not in shared and k not in without} for run in choices]
