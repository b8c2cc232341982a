"""`sweep.json`: the jobs of a sweep, written before the first one starts."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydrant.config.atomic_write import write_json
from hydrant.errors import RecordError, first_line
from hydrant.runs.folder import SWEEP_PLAN


@dataclass(frozen=True)
class PlannedJob:
    """A job of a sweep, started or not."""

    folder: Path
    overrides: Sequence[str]
    refused: str = ""  # why the job could not start


@dataclass(frozen=True)
class Plan:
    """The jobs of a sweep, in their order."""

    began: float  # when the newest command of the sweep started, in unix seconds
    jobs: Sequence[PlannedJob]


def write_plan(sweep: Path, plan: Plan) -> None:
    """Write `sweep.json`, without secrets."""
    root = sweep.resolve()
    jobs = [
        {
            "run": os.path.relpath(job.folder.resolve(), root),
            "overrides": list(job.overrides),
            "refused": job.refused or None,
        }
        for job in plan.jobs
    ]
    write_json(sweep / SWEEP_PLAN, {"began": plan.began, "jobs": jobs})


def read_plan(sweep: Path) -> Plan:
    """Return the plan of the sweep's newest command; empty if there is none.

    Raises:
        RecordError: the file is damaged.
    """
    file = sweep / SWEEP_PLAN
    if not file.exists():
        return Plan(0.0, [])
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        jobs = [
            PlannedJob(sweep / job["run"], job["overrides"], job["refused"] or "") for job in content["jobs"]
        ]
        return Plan(content["began"], jobs)
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{file} is damaged ({first_line(error)}); the same command writes it again"
        ) from error
