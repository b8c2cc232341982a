"""Runs that are the same job, of which one counts: a repeat adds no evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hydrant.compare.keys import label
from hydrant.compare.sources import REPEAT, Run

_NOT_BEGUN = ("missing", "not started", "damaged")


def with_repeats(runs: Sequence[Run], keys: Sequence[str]) -> list[Run]:
    """The runs; of those that differ in none of the keys all are marked but one, the newest that is finished."""
    jobs: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        if run.state not in _NOT_BEGUN:
            jobs.setdefault(tuple(label(run, key) for key in keys), []).append(run)
    counted = {
        run.name: max(own, key=lambda run: (run.state == "finished", run.logged)).name
        for own in jobs.values()
        for run in own
    }
    return [
        run if counted.get(run.name, run.name) == run.name else _repeat(run, counted[run.name])
        for run in runs
    ]


def _repeat(run: Run, of: str) -> Run:
    told = f"the same job as {of}, which counts"
    return replace(run, state=REPEAT, repeats=of, error=f"{told}; {run.error}" if run.error else told)
