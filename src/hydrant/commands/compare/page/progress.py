"""How far the runs are: the updates, speed and memory of those that run, and the time that is left for all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from hydrant.commands.compare.run import REPEAT, SEVERAL, Run
from hydrant.commands.compare.run_values import figure
from hydrant.runs.folder import SWEEP_PLAN, RunFolder, RunStatus
from hydrant.runs.lock import is_in_use
from hydrant.sweeps.plan import usable_plan

_RUNNING = (RunStatus.RUNNING, RunStatus.RUNNING_ELSEWHERE)
_NOT_ENDED = (*_RUNNING, RunStatus.MISSING)
_DONE = (RunStatus.FINISHED, RunStatus.PRUNED, RunStatus.REFUSED, REPEAT, SEVERAL)


def progress(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the states of the runs, the running ones, and the seconds that are left for all (None if unknown)."""
    waiting = set(_waiting(runs))
    running = [_running(run) for run in runs if run.state in _RUNNING]
    return {
        "num_runs": len(runs),
        "num_ended": sum(run.state not in _NOT_ENDED and run.name not in waiting for run in runs),
        "num_waiting": len(waiting),
        "running": running,
        "samples_per_second": _sum(entry["samples_per_second"] for entry in running),
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


def _sum(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


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
            earlier[sweep] = {job.folder.resolve(): job.earlier for job in jobs}
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
