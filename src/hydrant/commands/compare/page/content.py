"""What the page holds: packed curves, configs, pictures, and how far the runs are."""

import base64
import itertools
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any

from hydrant.commands.compare.config_keys import as_text
from hydrant.commands.compare.run import REPEAT, SEVERAL, Run
from hydrant.commands.compare.sections import figure
from hydrant.runs.folder import PICTURES, SWEEP_PLAN, RunFolder, RunStatus
from hydrant.runs.lock import is_in_use
from hydrant.sweeps.plan import usable_plan


def packed(curves: Mapping[str, Any]) -> dict[str, Any]:
    """Return the curves with each list of updates in one place, under `grids`, because most curves share one.

    Whole updates are stored by their distances, which compress well.

    >>> packed({"a": {"u": [0, 10, 20], "v": [1]}, "b": [{"u": [0, 10, 20], "v": [2]}]})["grids"]
    [{'steps': [0, 10, 10]}]
    """
    grids: dict[tuple[float, ...], int] = {}

    def pack(value: Any) -> Any:
        match value:
            case {"u": updates}:
                return {**value, "u": grids.setdefault(tuple(updates), len(grids))}
            case dict():
                return {key: pack(item) for key, item in value.items()}
            case list() if value and not isinstance(value[0], (int, float, str)):
                return [pack(item) for item in value]
            case _:
                return value

    content = pack(dict(curves))
    encoded = [
        {"steps": [b - a for a, b in itertools.pairwise((0, *updates))]}
        if all(isinstance(update, int) for update in updates)
        else {"places": list(updates)}
        for updates in grids
    ]
    return {**content, "grids": encoded}


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

PICTURE_TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}


def pictures_of(folder: Path | None) -> dict[str, Path]:
    """Return the pictures of a run by `<name>/<file>`, the latest last. Links are left out: they may lead elsewhere."""
    if folder is None:
        return {}
    pictures = dict[str, Path]()
    for kind in _entries(folder / PICTURES):
        if kind.is_dir(follow_symlinks=False):
            for entry in _entries(Path(kind.path)):
                if entry.is_file(follow_symlinks=False) and Path(entry.name).suffix in PICTURE_TYPES:
                    pictures[f"{kind.name}/{entry.name}"] = Path(entry.path)
    return pictures


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError):
        if stat.S_ISDIR(folder.lstat().st_mode):
            with os.scandir(folder) as entries:
                yield from sorted(entries, key=lambda entry: entry.name)


def embedded_pictures(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the latest picture of each name of each run, until `MAX_BYTES`; and how many are left out.

    A picture has `name`, the update `after` which it was drawn (None: unknown), `file` and `source`.
    """
    room, left_out, shown = MAX_BYTES, 0, list[list[dict[str, Any]]]()
    for run in runs:
        shown.append([])
        pictures = pictures_of(run.folder)
        latest = {file.rpartition("/")[0]: file for file in pictures}
        for name, file in latest.items():
            number = re.search(r"\d+", rest := file.rpartition("/")[2])
            with suppress(OSError):  # it was just removed
                size = pictures[file].stat().st_size
                if size > room:
                    left_out += 1
                    continue
                content = base64.b64encode(pictures[file].read_bytes()).decode()
                source = f"data:{PICTURE_TYPES[pictures[file].suffix]};base64,{content}"
                after = int(number[0]) if number else None
                shown[-1].append({"name": name, "after": after, "file": rest, "source": source})
                room -= size
    return {"runs": shown, "left_out": left_out}


_RUNNING = (RunStatus.RUNNING, RunStatus.RUNNING_ELSEWHERE)
_NOT_ENDED = (*_RUNNING, RunStatus.MISSING)
_DONE = (RunStatus.FINISHED, RunStatus.PRUNED, RunStatus.REFUSED, REPEAT, SEVERAL)


def progress(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the states of the runs, the running ones, and the seconds that are left for all (None if unknown)."""
    waiting = set(_waiting(runs))
    running = [_running(run) for run in runs if run.state in _RUNNING]
    rates = [rate for entry in running if (rate := entry["samples_per_second"]) is not None]
    return {
        "num_runs": len(runs),
        "num_ended": sum(run.state not in _NOT_ENDED and run.name not in waiting for run in runs),
        "num_waiting": len(waiting),
        "running": running,
        "samples_per_second": sum(rates) if rates else None,
        "seconds_left": _seconds_left(runs, running, len(waiting)),
    }


def _running(run: Run) -> dict[str, Any]:
    total, rate = run.summary.get("total_updates"), _last(run, "perf/updates_per_second")
    logged = [series.updates[-1] for series in run.series.values() if len(series.updates)]
    done = max([run.summary.get("num_updates") or 0, *map(int, logged)])
    return {
        "name": run.name,
        "num_updates": done,
        "total_updates": total,
        "loss": _last(run, "train/loss"),
        "updates_per_second": rate,
        "samples_per_second": _last(run, "perf/samples_per_second"),
        "peak_memory_gib": figure(run.summary, "peak_memory_gib"),
        "seconds_left": max(total - done, 0) / rate if total and rate else None,
        "logged": run.last_logged or None,
    }


def _last(run: Run, metric: str) -> float | None:
    """Return the last value of a metric, None if it has none or it is not finite."""
    series = run.series.get(metric)
    value = float(series.values[-1]) if series is not None and len(series.values) else None
    return value if value is not None and abs(value) < float("inf") else None


def _waiting(runs: Sequence[Run]) -> Iterable[str]:
    """Yield the names of the jobs that running sweeps will still start."""
    earlier: dict[Path, dict[Path, float]] = {}  # of the jobs of running sweeps, by folder
    for run in runs:
        if run.folder is None or run.state in (*_RUNNING, *_DONE):
            continue
        sweep = run.folder.parent
        if sweep not in earlier:
            is_running = (sweep / SWEEP_PLAN).exists() and is_in_use(sweep)
            jobs = usable_plan(sweep)[0].jobs if is_running else []
            earlier[sweep] = {(sweep / job.run).resolve(): job.earlier for job in jobs}
        if RunFolder(run.folder).summary_time == earlier[sweep].get(run.folder.resolve()):
            yield run.name


def _seconds_left(runs: Sequence[Run], running: Sequence[dict[str, Any]], num_waiting: int) -> float | None:
    """Return the time that is left if the waiting jobs are as long as the others, and as many run at once as now."""
    totals = [total for run in runs if (total := run.summary.get("total_updates"))]
    rates = [entry["updates_per_second"] for entry in running]
    if not running or not totals or not all(rates) or any(entry["seconds_left"] is None for entry in running):
        return None
    updates = sum(max(entry["total_updates"] - entry["num_updates"], 0) for entry in running)
    together = (updates + num_waiting * fmean(totals)) / sum(rates)
    return max(together, *(entry["seconds_left"] for entry in running))
