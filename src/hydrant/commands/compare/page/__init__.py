"""A comparison as one HTML page. It contains its data, and the scripts and styles of this folder.

It works offline. With `--follow`, it is written again while runs train, and loads itself again.
"""

import base64
import gzip
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from hydrant.commands.compare.comparison import Comparison, compare
from hydrant.commands.compare.curves import curves
from hydrant.commands.compare.page.content import details, embedded_pictures, packed, progress
from hydrant.commands.compare.question import Question
from hydrant.commands.compare.run import WANDB_PREFIX, Run
from hydrant.commands.compare.serialize import to_dict
from hydrant.commands.compare.sources import RunReader, read_runs
from hydrant.errors import ConfigError, HydrantError
from hydrant.files.atomic_write import replace_file
from hydrant.terminal.console import notice

SCRIPTS = (
    "dom", "scales", "state", "choices", "filter", "tables", "figure", "saving", "axes", "groups", "panels", "curves",
    "schedules", "scatter", "history", "heatmap", "brush", "parallel", "profile", "noise", "sensitivity",
    "tuning", "progress", "pictures", "run", "follow", "main",
)  # fmt: skip
"""The scripts in the order of their dependencies."""

_FOLDER = Path(__file__).parent


def write_page(comparison: Comparison, path: Path, reload_seconds: float = 0.0) -> None:
    """Write the page to a file, whole or not at all. An open page loads itself again after so many seconds, if any."""
    parts: dict[str, Any] = page_data(comparison) | {
        "progress": progress(comparison.runs),
        "pictures": embedded_pictures(comparison.runs),
    }
    text = page({name: encoded(part) for name, part in parts.items()}, reload_seconds)
    replace_file(path.resolve(), text)  # write through a link instead of replacing it


def page_data(comparison: Comparison) -> dict[str, Any]:
    """Return the parts of the data that follow from a comparison."""
    return {
        "comparison": to_dict(comparison),
        "curves": packed(curves(comparison)),
        "details": details(comparison.runs),
    }


def encoded(part: Any) -> str:
    """Return a part of the data as compressed JSON in base64, which the page decodes."""
    text = json.dumps(part, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(text, mtime=0)).decode()


def page(parts: Mapping[str, str], reload_seconds: float) -> str:
    """Return the page with its encoded data by name."""
    scripts = "\n".join(_read(f"{name}.js") for name in SCRIPTS)
    script = f'\n(function () {{\n"use strict";\n{scripts}\n}})();\n'
    return Template(_read("page.html")).substitute(
        hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=_read("page.css"),
        figure_style=_read("figure.css"),
        reload=f"{reload_seconds:g}",
        data=json.dumps(parts),  # base64 cannot end the script
        script=script,
    )


@cache
def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


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
