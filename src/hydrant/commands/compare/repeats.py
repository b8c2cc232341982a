"""Runs that count in no group: repeats, and runs that several configs trained.

Of several runs of the same job only one counts, because copies add no information.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hydrant.commands.compare.config_keys import label
from hydrant.commands.compare.run import REPEAT, SEVERAL, Run
from hydrant.errors import shown
from hydrant.runs.folder import RunStatus

_NO_COPY = (RunStatus.MISSING, RunStatus.NOT_STARTED, RunStatus.DAMAGED, SEVERAL)


def mark_several_configs(runs: Sequence[Run]) -> list[Run]:
    """Return the runs. Those that continued with another config say which config trained which updates."""
    return [
        replace(run, state=SEVERAL, error=_stretches_text(run)) if run.summary.get("stretches") else run
        for run in runs
    ]


def _stretches_text(run: Run) -> str:
    """Return the config of each stretch in words: `duration 20, optimizer.lr 0.001 until update 20, then ...`."""
    parts = [
        ", ".join(f"{key} {shown(value)}" for key, value in stretch["config"].items())
        + ("" if stretch["end"] is None else f" until update {stretch['end']:,}")
        for stretch in run.summary["stretches"]
    ]
    return ", then ".join(parts)


def mark_repeats(runs: Sequence[Run], keys: Sequence[str]) -> list[Run]:
    """Return the runs. Among runs that no key tells apart, the newest finished one counts."""
    jobs: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        if run.state not in _NO_COPY:
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
