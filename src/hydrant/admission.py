"""Whether the jobs of a sweep can run, before the first one starts."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydrant.earlier import earlier_start
from hydrant.errors import ConfigError, HydrantError, RecordError
from hydrant.executors.base import preload
from hydrant.isolation import ProcessDied, Stopped, call_isolated
from hydrant.job import relative
from hydrant.runs import read_plan, read_run, runs_of_sweep

_ALIKE = ("name", "seed")
"""Keys that do not decide whether a run can start."""

_MOVING_SECONDS = 300.0
"""Whose record was written in the last so many seconds, that run is still trained."""


def is_finished(config: Mapping[str, Any], folder: Path) -> bool:
    """Whether a job has nothing left to do."""
    with suppress(HydrantError):  # the job itself will say more
        return earlier_start(config, folder).is_finished
    return False


def refuse_another(config: Mapping[str, Any], folder: Path) -> None:
    """Raises ConfigError where the folder of a job belongs to a run of another config."""
    with suppress(RecordError):
        earlier_start(config, folder)


def trained_elsewhere(folder: Path) -> str:
    """Why a job is not to go on in its folder: another machine trains there. One that seems lost is only told of."""
    run = read_run(folder)
    if run.state != "running elsewhere":
        return ""
    seconds = time.time() - run.moved
    told = f"{relative(folder)} is of a run on {run.summary['host']}, whose record moved {seconds:.0f} s ago"
    if seconds < _MOVING_SECONDS:
        remedy = f"wait for it; if that machine is lost, {_MOVING_SECONDS:.0f} s after the last move it goes on here"
        return f"{told}; {remedy}"
    print(f"{told}: taken for lost, it goes on here", file=sys.stderr, flush=True)
    return ""


def told_of_start(folder: Path, jobs: Mapping[Path, bool]) -> str:
    """How far the jobs of a sweep are, by folder and whether they are finished; what else lies in the sweep's."""
    counts = Counter("finished" if ended else _found(job) for job, ended in jobs.items())
    told = ", ".join(
        f"{counts[found]} {found}" for found in ("finished", "begun before", "new") if counts[found]
    )
    text = f"{relative(folder.resolve())}: {len(jobs)} job{'s' * (len(jobs) != 1)}: {told}"
    if others := [run for run in runs_of_sweep(folder) if run.path.resolve() not in jobs]:
        text += f"; {len(others)} other run{'s' * (len(others) != 1)} in this folder"
    with suppress(RecordError):  # the plan is about to be written again
        planned = [job.folder.resolve() for job in read_plan(folder).jobs]
        if dropped := [job for job in planned if job not in jobs and _found(job) == "new"]:
            text += f"; of the command before, {len(dropped)} never began and are no longer planned"
    return text


def _found(folder: Path) -> str:
    return "begun before" if (folder / ".hydra").is_dir() else "new"


def refusals(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(key, reason) why each checked config cannot run on this machine, ("", "") where it can.

    Raises:
        Stopped: a signal arrived meanwhile.
    """
    keys = [repr(sorted((k, v) for k, v in config.items() if k not in _ALIKE)) for config in configs]
    distinct = dict(zip(keys, configs, strict=True))
    answer = call_isolated(_refusals, (list(distinct.values()),), preload=preload(configs))
    if answer.signum is not None:
        print("stopped by a signal before the first job", file=sys.stderr)
        raise Stopped(128 + answer.signum)
    if isinstance(answer.result, ProcessDied):  # the job itself will say more
        return [("", "")] * len(configs)
    refused = dict(zip(distinct, answer.result, strict=True))
    return [refused[key] for key in keys]


def _refusals(configs: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    return [_refusal(config) for config in configs]


def _refusal(config: Mapping[str, Any]) -> tuple[str, str]:
    from hydrant.build import prepare  # brings in torch

    try:
        prepare(config, is_plan=True)
    except ConfigError as error:
        return error.key, error.reason
    except Exception:  # damaged data, say: of no other job's concern, and its own job tells it
        return "", ""
    return "", ""
