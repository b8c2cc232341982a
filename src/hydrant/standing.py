"""How far the runs of a sweep are, from their folders alone: any process, on any machine that has them, can look."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydrant.locking import is_held, is_in_use
from hydrant.runs import Planned, RunFolder, choices_in, read_plan, read_run, runs_of_sweep
from hydrant.trackers.record import METRICS, row_of

_TAIL = 1 << 16
"""Bytes at the end of metrics.jsonl that hold the last rows, of training and of evaluation."""

_RUNNING = ("running", "running elsewhere")


@dataclass(frozen=True)
class Standing:
    """How far a run is. What is not known is None."""

    run: str  # its folder within the sweep
    choices: Mapping[str, str]
    state: str  # queued, running, running elsewhere, finished, failed, preempted, killed, refused, not started, damaged
    num_updates: int | None = None
    total_updates: int | None = None
    loss: float | None = None
    seconds_left: float | None = None
    metric: str | None = None  # the one that decides the best checkpoint
    best: float | None = None
    best_num_updates: int | None = None
    told: str = ""  # why it failed, or what it waits for

    @property
    def is_running(self) -> bool:
        return self.state in _RUNNING


def standings(folder: Path) -> list[Standing]:
    """Of the jobs of a sweep in their order, and of other runs in its folder; or of the run that a folder is.

    Raises:
        RecordError: the plan of the sweep is damaged.
    """
    if (folder / "config.yaml").exists() or (folder / ".hydra").is_dir():
        return [_standing(read_run(folder), folder.parent)]
    plan, is_going = read_plan(folder), is_in_use(folder)
    planned = {job.folder.resolve() for job in plan.jobs}
    rest = [run for run in runs_of_sweep(folder) if run.path.resolve() not in planned]
    ours = (_planned(job, folder, plan.began if is_going else None) for job in plan.jobs)
    return [*ours, *(_standing(run, folder) for run in rest)]


def _planned(job: Planned, sweep: Path, since: float | None) -> Standing:
    """Of a job; `since` when its sweep goes on, None if it does not."""
    run = read_run(job.folder)
    found = _standing(replace(run, choices=choices_in(job.overrides)), sweep)
    if job.refused:
        return replace(found, state="refused", told=job.refused)
    is_to_come = since is not None and run.changed < since and found.state != "finished"
    if not is_to_come or found.is_running:
        return found
    return replace(found, state="queued", told=f"{run.state} before" if run.has_begun else "")


def _standing(run: RunFolder, sweep: Path) -> Standing:
    state, best = run.state, run.summary.get("best") or {}
    if state not in ("finished", *_RUNNING) and is_held(run.path):
        state = "running"  # it has just begun
    found = Standing(
        run=os.path.relpath(run.path, sweep),
        choices=run.choices,
        state=state,
        num_updates=run.summary.get("num_updates"),
        total_updates=run.summary.get("total_updates"),
        metric=best.get("metric"),
        best=best.get("value"),
        best_num_updates=best.get("num_updates"),
        told="" if state in ("finished", *_RUNNING) else run.error,
    )
    return _with_rows(found, list(_last_rows(run.path))) if run.status == "running" else found


def _with_rows(standing: Standing, rows: Sequence[Mapping[str, Any]]) -> Standing:
    """What the newest rows of the record say beyond the summary."""
    done = max([standing.num_updates or 0, *(row["num_updates"] for row in rows)])
    pace, total = _last(rows, "perf/updates_per_second"), standing.total_updates
    left = None if not (pace and total and standing.is_running) else (total - done) / pace
    return replace(standing, num_updates=done, loss=_last(rows, "train/loss"), seconds_left=left)


def _last(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    return next((row[key] for row in reversed(rows) if row.get(key) is not None), None)


def _last_rows(run: Path) -> Iterator[dict[str, Any]]:
    """The last whole rows of metrics.jsonl, which another process may be writing."""
    try:
        with (run / METRICS).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _TAIL, 0))
            lines = file.read().split(b"\n")[:-1]  # what follows the last newline is torn
    except FileNotFoundError:
        return
    for line in lines[1:] if size > _TAIL else lines:
        with suppress(ValueError):  # damaged: of no concern here
            yield row_of(line)
