"""A comparison as one HTML page. It contains its data, and the scripts and styles of this folder.

It works offline. With `--follow`, it is written again while runs train, and loads itself again.
"""

import base64
import gzip
import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from msgspec.structs import asdict

from hydrant.errors import HydrantError
from hydrant.extensions.compare.comparison import Comparison, compare
from hydrant.extensions.compare.config_keys import as_text
from hydrant.extensions.compare.curves import curves
from hydrant.extensions.compare.question import Question
from hydrant.extensions.compare.run import Run
from hydrant.extensions.compare.sections import FIGURES
from hydrant.extensions.compare.serialize import to_dict
from hydrant.extensions.compare.sources import read_runs
from hydrant.files.atomic_write import json_safe, replace_file
from hydrant.runs.folder import PICTURES, SWEEP_PLAN, RunStatus
from hydrant.sweeps.progress import is_running, sweep_progress
from hydrant.terminal.console import notice

SCRIPTS = (
    "dom", "scales", "state", "choices", "filter", "tables", "figure", "saving", "axes", "groups", "panels", "curves",
    "schedules", "scatter", "history", "heatmap", "brush", "parallel", "profile", "noise", "sensitivity",
    "tuning", "progress", "pictures", "run", "follow", "main",
)  # fmt: skip
"""The scripts in the order of their dependencies."""


def write_page(comparison: Comparison, path: Path, reload_seconds: float = 0.0) -> None:
    """Write the page to a file, whole or not at all. An open page loads itself again after so many seconds, if any."""
    parts = {
        "comparison": to_dict(comparison)
        | {"figure_titles": {name: title for name, (_, title) in FIGURES.items()}},
        "curves": curves(comparison),
        "details": details(comparison.runs),
        "progress": progress(comparison.runs),
        "pictures": embedded_pictures(comparison.runs),
    }
    text = page({name: encoded(part) for name, part in parts.items()}, reload_seconds)
    replace_file(path.resolve(), text)  # write through a link instead of replacing it


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
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def details(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the most frequent value of each config key, and the others of each run (None: no such key)."""
    configs = [{key: as_text(value) for key, value in run.config.items()} for run in runs]
    counts: dict[str, Counter[str]] = {}
    for config in configs:
        for key, text in config.items():
            counts.setdefault(key, Counter())[text] += 1
    common = {key: values.most_common(1)[0][0] for key, values in sorted(counts.items())}
    differing = [
        {k: config.get(k) for k, text in common.items() if config.get(k) != text} for config in configs
    ]
    return {"common": common, "runs": differing}


MAX_BYTES = 384 << 10
"""The pictures in a page have at most this many bytes together, so that a page can be sent by mail."""

_PICTURE_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}


def embedded_pictures(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the latest picture of each name of each run, until `MAX_BYTES`; and how many are left out.

    A picture has `name`, the update `after` which it was drawn (None: unknown), and `source`. Links are left out: they
    may lead elsewhere.
    """
    room, left_out, shown = MAX_BYTES, 0, list[list[dict[str, Any]]]()
    for run in runs:
        shown.append([])
        files = [] if run.folder is None else sorted(run.folder.resolve().glob(f"{PICTURES}/*/*"))
        pictures = [file for file in files if file.suffix in _PICTURE_TYPES and file.resolve() == file]
        for name, file in {file.parent.name: file for file in pictures if file.is_file()}.items():
            with suppress(OSError):  # it was just removed
                size = file.stat().st_size
                if size > room:
                    left_out += 1
                    continue
                content = base64.b64encode(file.read_bytes()).decode()
                number = re.search(r"\d+", file.name)
                source = f"data:{_PICTURE_TYPES[file.suffix]};base64,{content}"
                shown[-1].append({"name": name, "after": number and int(number[0]), "source": source})
                room -= size
    return {"runs": shown, "left_out": left_out}


def progress(runs: Sequence[Run]) -> dict[str, Any]:
    """Return how many runs have ended and wait, and the progress of the running ones, as `hydrant status` has it."""
    names = {run.folder.resolve(): run.name for run in runs if run.folder is not None}
    folders = [path.parent if (path.parent / SWEEP_PLAN).exists() else path for path in names]
    every_run = [one for folder in dict.fromkeys(folders) for one in sweep_progress(folder)]
    known = {path: one for one in every_run if (path := Path(one.folder).resolve()) in names}
    running = [
        json_safe({**asdict(one), "name": names[path]}) for path, one in known.items() if is_running(one)
    ]
    states = Counter(one.state for one in known.values())
    num_waiting = states[RunStatus.QUEUED]
    num_ended = len(runs) - len(running) - num_waiting - states[RunStatus.MISSING]
    return {"num_runs": len(runs), "num_ended": num_ended, "num_waiting": num_waiting, "running": running}


_REST, _RELOAD = 2.0, 5.0  # seconds: between two looks at the files, and for an open page to wait, at least
_SHARE = 60  # rest so many times the processor time of a look: a second a minute is used at most


def follow(words: Sequence[str], question: Question, path: Path) -> Comparison:
    """Write the page whenever a run has new rows, until no run trains or waits. Return the last comparison.

    Raises:
        ConfigError: as `read_runs` and `compare`, unless a run that trains may still write what is missing.
        KeyboardInterrupt: Ctrl-C; the last page no longer loads itself again.
    """
    tell, known, was_live, rest = cache(notice), list[Run](), True, _REST
    comparison: Comparison | None = None
    try:
        while True:
            began, is_first = time.process_time(), not known
            runs = read_runs(words, question.varied, tell)
            now = progress(runs)
            is_live = bool(now["running"] or now["num_waiting"])
            if not is_live:
                runs = read_runs(words, question.varied, tell)  # the last one may have ended since
            if runs != known or is_live != was_live:
                with suppress(HydrantError) if is_live else nullcontext():
                    comparison = compare(runs, question)
                    write_page(comparison, path, max(rest, _RELOAD) if is_live else 0.0)
                known, was_live = runs, is_live
            if not is_live and comparison is not None:
                return comparison
            # The first comparison imports much, so its time is not counted.
            rest = _REST if is_first else max(_REST, _SHARE * (time.process_time() - began))
            time.sleep(rest)
    except KeyboardInterrupt:
        if comparison is not None:
            write_page(comparison, path)
        raise
