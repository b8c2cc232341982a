"""`log`: list what was asked and what came out, one line for each run, sweep and study. Imports no torch."""

import glob
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Literal

from hydrant.commands.registry import commands
from hydrant.config.command_line import Flags, named_folder
from hydrant.errors import HydrantError, RecordError
from hydrant.files.plain_values import PositiveInt, check_value
from hydrant.installation import entry_points
from hydrant.records import Answer, RunProgress
from hydrant.runs import folder as run_folder
from hydrant.runs.folder import RunFolder, RunStatus, is_run_folder, modified
from hydrant.sweeps.plan import sweep_progress, usable_plan
from hydrant.sweeps.results_table import format_counts
from hydrant.terminal.console import answer, notice, relative, say, wants_json
from hydrant.terminal.text import number

_NUM_SHOWN = 20
_MAX_DEPTH = 4
"""How far below a folder runs are found: multirun/<date>/<time>, and one level for a collection of such folders."""
_MAX_VALUES = 5
"""The most values of a key that a line shows."""
_RECORDS = (run_folder.SUMMARY, run_folder.METRICS, run_folder.CONFIG, run_folder.SWEEP_PLAN,
            run_folder.SWEEP_TABLE)  # fmt: skip
"""The files whose times say when a run, a sweep or a study was last recorded."""
_LAST_TIME = datetime(9999, 1, 1).timestamp()


class Entry(Answer):
    """A run, a sweep or a study.

    Attributes:
        folder: Its folder.
        kind: What it is.
        time: When it was last recorded, in unix seconds.
        asked: Its overrides, each key with all of its values, or the question of a study.
        claim: `claim` of its config.
        notes: `notes` of its config.
        states: How many of its runs are in each state, as in `status`.
        metric: Of a run: the metric that decides the best checkpoint.
        best: The best value of it.
        best_num_updates: After how many updates it was.
        sentence: The verdict of a study, or of a sweep by `compare`; empty if there is none yet.
        message: Why a run failed, or why a sweep or a study has no verdict.
    """

    folder: str
    kind: Literal["run", "sweep", "study"]
    time: float
    asked: str
    claim: str
    notes: str
    states: Mapping[str, int]
    metric: str | None
    best: float | None
    best_num_updates: int | None
    sentence: str
    message: str


class Log(Answer):
    """What was asked and what came out, the newest last.

    Attributes:
        entries: Runs, sweeps and studies.
        num_earlier: How many earlier ones `--last` has left out.
    """

    entries: Sequence[Entry]
    num_earlier: int


def main(arguments: Sequence[str]) -> int:
    """List the newest runs, sweeps and studies and return the exit status."""
    options, words = Flags("log", last=_NUM_SHOWN).split(arguments)
    check_value("--last", PositiveInt, options.last)
    roots = [named_folder(word) for word in words] or [
        Path(root) for root in run_folder.ROOTS if Path(root).is_dir()
    ]
    folders = {os.path.realpath(path): path for root in roots for path in _recorded_below(root)}
    times = {p: max(modified(p / name) for name in _RECORDS) or modified(p) for p in folders.values()}
    newest = sorted(times, key=lambda path: (times[path], path))
    num_earlier = max(len(newest) - options.last, 0)
    entries = (_entry(path, times[path]) for path in newest[num_earlier:])
    if wants_json():
        answer(Log([*entries], num_earlier))
        return 0
    if num_earlier:
        say(f"{num_earlier} earlier: hydrant log --last={len(newest)} lists all")
    for entry in entries:
        say(_line(entry))
    if not newest:
        notice(f"no runs in {', '.join(words or run_folder.ROOTS)}")
    return 0


def _recorded_below(folder: Path, depth: int = 0) -> Iterator[Path]:
    """Yield the folders of runs, sweeps and studies at or below a folder, but none behind a link or in another one."""
    try:
        if is_run_folder(folder) or (folder / run_folder.SWEEP_PLAN).exists():
            yield folder
            return
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if e.is_dir(follow_symlinks=False) and e.name[0] != "."]
    except OSError as error:
        notice(f"{relative(folder)} cannot be read ({error.strerror}), so the log lacks its runs")
        return
    for name in sorted(names) if depth < _MAX_DEPTH else ():
        yield from _recorded_below(folder / name, depth + 1)


def _entry(folder: Path, time: float) -> Entry:
    """Read a run, a sweep or a study. What is damaged in it is said, and left out."""
    runs = sweep_progress(folder)
    if is_run_folder(folder):
        [run] = runs
        kind, asked, sentence, message = "run", _overrides(runs), "", run.message
    else:
        run = None
        if damage := usable_plan(folder)[1]:
            notice(damage)
        kind, asked, sentence, message = _sweep_or_study(folder, runs)
    claim, notes = _texts([folder] if run else [Path(r.folder) for r in runs])
    return Entry(
        folder=relative(folder),
        kind=kind,
        time=time,
        asked=asked,
        claim=claim,
        notes=notes,
        states=dict(Counter(str(r.state) for r in runs)),
        metric=run.metric if run else None,
        best=run.best if run else None,
        best_num_updates=run.best_num_updates if run else None,
        sentence=sentence,
        message=message,
    )


def _sweep_or_study(
    folder: Path, runs: Sequence[RunProgress]
) -> tuple[Literal["sweep", "study"], str, str, str]:
    """Return kind, question, verdict, and why there is no verdict."""
    kind = "study"
    try:
        for point in entry_points("hydrant.verdicts").values():
            if study := point.load()(folder):
                return "study", study.question, study.sentence, ""
        kind = "sweep"
        return kind, _overrides(runs), _verdict(folder, runs), ""
    except HydrantError as error:
        return kind, _overrides(runs), "", str(error)


def _verdict(folder: Path, runs: Sequence[RunProgress]) -> str:
    """Return the sentence with which `hydrant compare` begins; "" before two runs have finished."""
    if sum(run.state == RunStatus.FINISHED for run in runs) < 2 or "compare" not in commands():
        return ""
    from hydrant.extensions.compare.comparison import compare  # slow: imports scipy
    from hydrant.extensions.compare.sources import Question, read_runs

    words = [glob.escape(str(folder))]
    return str(compare(read_runs(words, tell=lambda _: None), Question()).verdict.sentence)


def _overrides(runs: Sequence[RunProgress]) -> str:
    """Return the overrides of runs as one command would give them: each key with all of its values."""
    values = dict[str, dict[str, None]]()
    for run in runs:
        for key, value in run.choices.items():
            if key not in ("name", "claim", "notes"):
                values.setdefault(key, {})[value] = None
    return " ".join(f"{key}={_several(list(texts))}" for key, texts in values.items())


def _several(values: Sequence[str]) -> str:
    """Join the values of a key.

    >>> _several(["0.1"]), _several(["0", "1", "2", "3", "4", "5", "6"])
    ('0.1', '0,1,2,...,6 (7 values)')
    """
    if len(values) <= _MAX_VALUES:
        return ",".join(values)
    return f"{','.join(values[:3])},...,{values[-1]} ({len(values):,} values)"


def _texts(runs: Sequence[Path]) -> tuple[str, str]:
    """Return claim and notes of the first run whose config can be read."""
    for run in runs:
        with suppress(RecordError):  # `compare` and `evaluate` say what is damaged
            if config := RunFolder(run).config:
                claim, notes = (config.get(key) for key in ("claim", "notes"))
                return (claim if isinstance(claim, str) else "", notes if isinstance(notes, str) else "")
    return "", ""


def _line(entry: Entry) -> str:
    """Return an entry as one line."""
    date = datetime.fromtimestamp(min(max(entry.time, 0), _LAST_TIME))
    claim, notes = entry.claim and f"claim: {entry.claim}", entry.notes and f"notes: {entry.notes}"
    asked = "; ".join(filter(None, [entry.asked, claim, notes])) or "no overrides"
    states = next(iter(entry.states), "") if entry.kind == "run" else format_counts(Counter(entry.states))
    value = (
        entry.best is not None and f"{entry.metric} {number(entry.best)} at update {entry.best_num_updates}"
    )
    outcome = "; ".join(filter(None, [states, value or "", entry.sentence, entry.message])) or "no runs"
    line = f"{date:%Y-%m-%d %H:%M}  {entry.kind} {entry.folder}: {asked} | {outcome}"
    return " ".join(line.split())
