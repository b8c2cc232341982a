"""The progress of a sweep's runs, read from their folders: by any process, on any machine that sees the folders.

What is repeated for all runs (`sparing`) takes a tenth of the time at most.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from msgspec.structs import replace

from hydrant.files.user_files import open_regular
from hydrant.records.answers import RunProgress
from hydrant.records.files import PlannedJob
from hydrant.runs.folder import METRICS, RunFolder, RunStatus, is_run_folder, runs_of_sweep
from hydrant.runs.lock import is_held, is_in_use, locking_process, this_machine
from hydrant.runs.record import parse_row
from hydrant.sweeps.plan import at_work, usable_plan
from hydrant.terminal.console import relative

_TAIL_BYTES = 1 << 16  # the end of metrics.jsonl, which holds the last rows of training and of evaluation

_RUNNING = (RunStatus.STARTING, RunStatus.RUNNING, RunStatus.RUNNING_ELSEWHERE)


def is_running(run: RunProgress) -> bool:
    return run.state in _RUNNING


def sweep_progress(folder: Path) -> list[RunProgress]:
    """Return the progress of a sweep's jobs in their order, then of other runs in its folder.

    In a run folder, return the progress of that run. A damaged plan of the sweep counts as none.
    """
    if is_run_folder(folder):
        return [_run_progress(RunFolder(folder), folder.parent)]
    plan, _ = usable_plan(folder)
    is_at_work, commands = is_in_use(folder), at_work(folder, plan)
    # In another container, no process is found that works at the sweep. A queue starts the jobs of a dead command too.
    starts_all = not commands or bool(plan.queues)
    living = (None, *commands)
    unplanned = runs_of_sweep(folder, without={Path(os.path.realpath(folder / job.run)) for job in plan.jobs})
    jobs = (
        _job_progress(
            job,
            folder,
            may_start=is_at_work and (starts_all or job.machine != this_machine() or job.pid in living),
        )
        for job in plan.jobs
    )
    return [*jobs, *(_run_progress(run, folder) for run in unplanned)]


def _job_progress(job: PlannedJob, sweep: Path, *, may_start: bool) -> RunProgress:
    """Return the progress of a job; `may_start`: a process runs its sweep, and has not left this job."""
    run = RunFolder(sweep / job.run, job.overrides)
    progress = _run_progress(run, sweep)
    if job.refused:
        return replace(progress, state=RunStatus.REFUSED, message=job.refused)
    is_queued = may_start and run.summary_time == job.earlier and progress.state != RunStatus.FINISHED
    if not is_queued or is_running(progress):
        return progress
    return replace(progress, state=RunStatus.QUEUED, message=f"{run.state} before" if run.has_begun else "")


def _run_progress(run: RunFolder, sweep: Path) -> RunProgress:
    state, best = run.state, run.summary.get("best") or {}
    if state not in (RunStatus.FINISHED, *_RUNNING) and is_held(run.path):
        state = RunStatus.STARTING
    progress = RunProgress(
        run=os.path.relpath(run.path, sweep),
        folder=relative(run.path),
        choices=run.choices,
        state=state,
        pid=locking_process(run.path) if state in _RUNNING else None,
        num_updates=run.summary.get("num_updates"),
        total_updates=run.summary.get("total_updates"),
        metric=best.get("metric"),
        best=best.get("value"),
        best_num_updates=best.get("num_updates"),
        message="" if state in (RunStatus.FINISHED, *_RUNNING) else run.error,
    )
    return _with_rows(progress, list(_last_rows(run.path))) if run.status == RunStatus.RUNNING else progress


def _with_rows(progress: RunProgress, rows: Sequence[Mapping[str, Any]]) -> RunProgress:
    """Add what the newest rows of metrics.jsonl say beyond the summary."""
    num_updates = max([progress.num_updates or 0, *(row["num_updates"] for row in rows)])
    rate, total = _last(rows, "perf/updates_per_second"), progress.total_updates
    left = (total - num_updates) / rate if rate and total and is_running(progress) else math.inf
    left = left if math.isfinite(left) else None
    return replace(progress, num_updates=num_updates, loss=_last(rows, "train/loss"), seconds_left=left)


def _last(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    return next((row[key] for row in reversed(rows) if row.get(key) is not None), None)


def _last_rows(run: Path) -> Iterator[dict[str, Any]]:
    """Yield the last complete rows of metrics.jsonl, which another process may be writing."""
    try:
        with open_regular(run / METRICS) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL_BYTES, 0))
            lines = file.read().split(b"\n")[:-1]  # what follows the last newline is incomplete
    except OSError:  # there is no file, or it is a pipe: the summary says the rest
        return
    for line in lines[1:] if size > _TAIL_BYTES else lines:
        with suppress(ValueError):  # a damaged line
            yield parse_row(line)


P = ParamSpec("P")

_REST = 9.0
"""How many times the duration of a call the next one is left out, so calls take a tenth of the time at most."""


def sparing(function: Callable[P, None]) -> Callable[P, None]:
    """Return a function that calls this one, or does nothing if the last call took long and was a short time ago."""
    next_call = 0.0

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> None:
        nonlocal next_call
        began = time.monotonic()
        if began >= next_call:
            function(*arguments, **named)
            ended = time.monotonic()
            next_call = ended + _REST * (ended - began)

    return call
