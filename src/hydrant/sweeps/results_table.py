"""The files of a sweep, which hold its plan and its results, and the table of results in the terminal."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import sys
import textwrap
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from hydrant.config.metric_keys import differing_definitions
from hydrant.config.schema import REPETITIONS
from hydrant.errors import HydrantError
from hydrant.files.atomic_write import locked, replace_file
from hydrant.files.redaction import public, redacted
from hydrant.files.user_files import as_csv
from hydrant.records.answers import RunProgress
from hydrant.records.files import Plan, PlannedJob
from hydrant.runs import folder as run_folder
from hydrant.runs.folder import RunFolder, RunStatus
from hydrant.runs.job import RunResult
from hydrant.runs.lease import this_machine
from hydrant.runs.lock import note_no_lock
from hydrant.sweeps.plan import usable_plan, write_plan
from hydrant.sweeps.progress import sparing
from hydrant.terminal.console import console, format_duration, is_terminal, notice, relative, say
from hydrant.terminal.text import align_columns, format_metric, number

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
    cells = _live_columns(shown, {run.metric for run in runs if run.metric is not None})
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


def _live_columns(shown: Sequence[RunProgress], metrics: Collection[str]) -> list[list[str]]:
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


MAX_PRINTED = 20
"""The most runs of a table that a sweep prints at its end."""


def write_sweep_csv(folder: Path, runs: Sequence[RunFolder]) -> None:
    """Write `sweep.csv` atomically: a row per run with its overrides, status and results."""
    choices = _columns(run.choices for run in runs)
    metrics = _columns(run.summary.get("metrics") or {} for run in runs)
    table = [["run", *choices, "status", "num_updates", "best", "best_num_updates", *metrics, "error"]]
    for run in runs:
        best, values = run.summary.get("best") or {}, run.summary.get("metrics") or {}
        table.append(
            [run.path.name, *(run.choices.get(c, "") for c in choices), run.state]
            + [run.summary.get("num_updates", ""), best.get("value", ""), best.get("num_updates", "")]
            + [values.get(m, "") for m in metrics]
            + [run.error]
        )
    replace_file(folder / run_folder.SWEEP_TABLE, as_csv(table))


def print_table(folder: Path, runs: Sequence[RunFolder], claims: Sequence[str], mode: str) -> None:
    """Print a line per run: the choices that differ between the runs, its state and best value; below it, its error.

    Of many runs, the most urgent ones are printed, then the best ones.

    Args:
        folder: that of the sweep.
        runs: those of the sweep.
        claims: the `claim` of the configs; with them, also each run's speed and memory are printed.
        mode: whether `min` or `max` of the values is the best.
    """
    labels = labels_of(runs)
    width = max(map(len, labels))
    folder = Path(relative(folder))
    states = [run.state for run in runs]
    values = [(run.summary.get("best") or {}).get("value") for run in runs]
    places: Sequence[int] = range(len(runs))
    if len(runs) > MAX_PRINTED:
        places = most_urgent(list(zip(states, values, strict=True)), MAX_PRINTED, mode)
    say(f"\n{folder}: {len(runs)} run{'s' if len(runs) > 1 else ''}, see {folder / run_folder.SWEEP_TABLE}")
    for place in places:
        run, value, best = runs[place], values[place], runs[place].summary.get("best") or {}
        details = [] if value is None else [_best_text(best, values)]
        details += [run_folder.performance_text(run.summary)] if claims else []
        say(f"  {labels[place]:<{width}}  {states[place]:<11} {'; '.join(filter(None, details))}".rstrip())
        if run.error:
            say(f"    {run.error}")
    if hidden := Counter(states) - Counter(states[place] for place in places):
        say(f"  and {format_counts(hidden)}: hydrant status {shlex.quote(str(folder))} lists all")
    for claim in claims:
        say(f"claim: {claim}")


def _best_text(best: Mapping[str, Any], values: Sequence[float | None]) -> str:
    """Return the best value of a run, with digits that tell it from the `values` of the others."""
    return f"{best['metric']} {format_metric(best['value'], beside=values)} at update {best['num_updates']}"


def closing_fields(folder: Path, runs: Sequence[RunFolder], seconds: float, mode: str) -> dict[str, str]:
    """Return the last lines of a sweep by their labels: its best run, its duration, and what shows more."""
    name, fields = relative(folder), dict[str, str]()
    results = [(best, run) for run in runs if (best := run.summary.get("best"))]
    metrics = {best["metric"] for best, _ in results}
    if results and mode and not any(differing_definitions(m, [run.choices for run in runs]) for m in metrics):
        values = [best["value"] for best, _ in results]
        best, run = (max if mode == "max" else min)(results, key=lambda result: result[0]["value"])
        label = labels_of(runs)[list(runs).index(run)]
        fields["best run"] = f"{label}: {_best_text(best, values)}"
    fields |= {"duration": format_duration(seconds), "results": f"{name}/{run_folder.SWEEP_TABLE}"}
    if (folder / run_folder.SWEEP_PICTURE).exists():
        fields["curves"] = f"{name}/{run_folder.SWEEP_PICTURE}"
    return fields | ({"compare": f"hydrant compare {shlex.quote(name)}"} if len(results) > 1 else {})


def labels_of(runs: Sequence[RunFolder]) -> list[str]:
    """Return of each run the choices in which it differs from others."""
    return [" ".join(words) or run.path.name for words, run in zip(_differing(runs, ()), runs, strict=True)]


def settings_of(runs: Sequence[RunFolder]) -> list[str]:
    """Return of each run the choices in which it differs from others, but those that repeat a run; "": none."""
    return list(map(" ".join, _differing(runs, REPETITIONS)))


def _differing(runs: Sequence[RunFolder], without: Sequence[str]) -> list[list[str]]:
    shared = set.intersection(*(set(run.choices.items()) for run in runs))
    return [
        [f"{k}={v}" for k, v in run.choices.items() if (k, v) not in shared and k not in without]
        for run in runs
    ]


def _columns(rows: Iterable[dict[str, Any]]) -> list[str]:
    return sorted({key for row in rows for key in row})


@contextmanager
def sweep_files_locked(folder: Path) -> Generator[None]:
    """Let one command at a time write the files of a sweep."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / run_folder.SWEEP_LOCK))
        except OSError as error:
            consequence = "if the sweep is started twice at once, some seconds may not be counted"
            note_no_lock(folder / run_folder.SWEEP_LOCK, error.strerror or str(error), consequence)
        yield


class SweepFiles:
    """What one `--multirun` command writes into the folder of its sweep."""

    def __init__(self) -> None:
        self._began = time.time()  # of the machine's clock, which may be set meanwhile
        self._began_monotonic = time.monotonic()
        self.jobs: dict[Path, PlannedJob] = {}  # by folder, in their order
        self.keeps_plan = False  # the jobs and commands in sweep.json: others are at work in the folder
        self.adds_seeds = False  # to a sweep whose results could be seen
        self._processor_seconds = 0.0  # of the processes of jobs
        # Wall and processor seconds: of all starts, and what is in it of this one.
        self.total = self._counted = 0.0, 0.0

    def count(self, result: RunResult) -> None:
        """Add the processor time of a process that has ended."""
        self._processor_seconds += result.processor_seconds

    @property
    def wall_seconds(self) -> float:
        """Those of this start so far."""
        return time.monotonic() - self._began_monotonic

    @property
    def processor_seconds(self) -> float:
        """Those of this process, and of the processes of jobs that were not killed, also on other machines."""
        return self._processor_seconds + time.process_time()

    def runs(self, folder: Path) -> list[RunFolder]:
        """Return the runs of the jobs in their order, then the other runs in the folder."""
        runs = [RunFolder(path, job.overrides, job.refused or "") for path, job in self.jobs.items()]
        return runs + run_folder.runs_of_sweep(folder, without=self.jobs)

    def write_plan(self, folder: Path) -> None:
        """Write what the sweep plans, with what other commands at work have planned, and what all starts have used."""
        with print_write_errors(folder / run_folder.SWEEP_PLAN), sweep_files_locked(folder):
            file, used = usable_plan(folder)[0], (self.wall_seconds, self.processor_seconds)
            wall, cpu = self.total = (  # of this start too, if somebody has damaged the file
                max(file.wall_seconds, self.total[0]) + used[0] - self._counted[0],
                max(file.processor_seconds, self.total[1]) + used[1] - self._counted[1],
            )
            self._counted = used
            kept, commands = (file.jobs, file.commands) if self.keeps_plan else ([], [])
            self.keeps_plan = True  # from now on, what others add is of commands at work
            jobs = {Path(os.path.realpath(folder / job.run)): job for job in kept} | self.jobs
            num, self.adds_seeds = file.num_extensions + self.adds_seeds, False  # it counts once
            write_plan(folder, Plan(self._began, [*jobs.values()], commands, "", "", wall, cpu, num))

    def refresh(self, folder: Path) -> None:
        self.write_plan(folder)
        self.write_table(folder, self.runs(folder))

    def write_table(self, folder: Path, runs: Sequence[RunFolder]) -> None:
        with print_write_errors(folder / run_folder.SWEEP_TABLE), sweep_files_locked(folder):
            write_sweep_csv(folder, runs)


def planned(folder: Path, overrides: Sequence[str]) -> PlannedJob:
    words, earlier = redacted([*overrides]), RunFolder(folder).summary_time
    return PlannedJob(f"{folder}", words, None, earlier, os.getpid(), this_machine())


@contextmanager
def print_write_errors(path: Path) -> Generator[None]:
    """Print an OSError instead of raising it, so that the jobs continue."""
    try:
        yield
    except OSError as error:
        notice(f"{path} cannot be written: {error.strerror or error}")
