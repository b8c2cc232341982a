"""Write the page of a comparison again while its runs train."""

import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from hydrant.commands.compare.comparison import Comparison, compare
from hydrant.commands.compare.page import write_page
from hydrant.commands.compare.page.content import progress
from hydrant.commands.compare.question import Question
from hydrant.commands.compare.run import WANDB_PREFIX, Run
from hydrant.commands.compare.sources import RunReader, read_runs
from hydrant.errors import ConfigError, HydrantError
from hydrant.terminal.console import notice

_REST, _RELOAD = 2.0, 5.0  # seconds: between two looks at the files, and for an open page to wait, at least
_SHARE = 60  # rest so many times the processor time of a look: a second a minute is used at most


def follow(words: Sequence[str], question: Question, path: Path) -> Comparison:
    """Write the page whenever a run has new rows, until no run trains or waits. Return the last comparison.

    Raises:
        ConfigError: a run is in W&B; or as `read_runs` and `compare`, unless a run that trains may still write what is
            missing.
        KeyboardInterrupt: Ctrl-C; the last page no longer loads itself again.
    """
    if any(word.startswith(WANDB_PREFIX) for word in words):
        raise ConfigError("--follow", "follows run folders, not runs of W&B", remedy="give folders")
    reader, tell, known, rest = RunReader(), cache(notice), list[Run](), _REST
    comparison: Comparison | None = None
    try:
        while True:
            began, is_first = time.process_time(), not known
            runs = read_runs(words, question.varied, reader, tell)
            now = progress(runs)
            is_live = bool(now["running"] or now["num_waiting"])
            if have_changed(runs, known):
                comparison = _compared(runs, question, is_live=is_live)
                if comparison is not None:
                    write_page(comparison, path, max(rest, _RELOAD) if is_live else 0.0)
                known = runs
            if not is_live and comparison is not None:
                return comparison
            # The first comparison imports much, so its time is not counted.
            rest = _REST if is_first else max(_REST, _SHARE * (time.process_time() - began))
            time.sleep(rest)
    except KeyboardInterrupt:
        if comparison is not None:
            write_page(comparison, path)
        raise


def _compared(runs: Sequence[Run], question: Question, *, is_live: bool) -> Comparison | None:
    """Return the comparison; None if runs that train have no metric yet."""
    try:
        return compare(runs, question)
    except HydrantError:
        if not is_live:
            raise
        return None


def have_changed(runs: Sequence[Run], known: Sequence[Run]) -> bool:
    """Return whether a run was added, removed, renamed or read again: else it has the same objects as before."""
    return len(runs) != len(known) or any(map(_has_changed, runs, known))


def _has_changed(run: Run, old: Run) -> bool:
    pairs = [(getattr(run, name), getattr(old, name)) for name in ("series", "schedules")]
    if any(new is not before and (new or before) for new, before in pairs):  # arrays, which are not compared
        return True
    plain = ("name", "state", "error", "summary", "config", "overrides")
    return any(getattr(run, name) != getattr(old, name) for name in plain)
