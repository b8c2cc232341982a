"""Repeats: of several runs of the same job, only one counts, because copies add no information."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hydrant.commands.compare.config_keys import label
from hydrant.commands.compare.run import REPEAT, Run
from hydrant.runs.folder import RunStatus

_NOT_BEGUN = (RunStatus.MISSING, RunStatus.NOT_STARTED, RunStatus.DAMAGED)


def mark_repeats(runs: Sequence[Run], keys: Sequence[str]) -> list[Run]:
    """Return the runs. Among runs that differ in none of the keys, the newest finished one counts."""
    jobs: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        if run.state not in _NOT_BEGUN:
            jobs.setdefault(tuple(label(run, key) for key in keys), []).append(run)
    counted = {
        run.name: max(copies, key=lambda run: (run.state == RunStatus.FINISHED, run.last_logged)).name
        for copies in jobs.values()
        for run in copies
    }
    return [_marked(run, counted.get(run.name, run.name)) for run in runs]


def _marked(run: Run, counted: str) -> Run:
    if run.name == counted:
        return run
    reason = f"the same job as {counted}, which counts"
    error = f"{reason}; {run.error}" if run.error else reason
    return replace(run, state=REPEAT, repeats=counted, error=error)
