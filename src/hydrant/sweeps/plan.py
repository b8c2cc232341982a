"""`sweep.json`: the jobs of a sweep, written before the first one starts."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    root, jobs = sweep.resolve(), list[dict[str, Any]]()
    for job in plan.jobs:
        run = os.path.relpath(job.folder.resolve(), root)
        jobs.append({"run": run, "overrides": list(job.overrides), "refused": job.refused or None})
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
        jobs = [PlannedJob(sweep / j["run"], j["overrides"], j["refused"] or "") for j in content["jobs"]]
        return Plan(content["began"], jobs)
    except (ValueError, KeyError, TypeError) as error:
        message = f"{file} is damaged ({first_line(error)}); the same command writes it again"
        raise RecordError(message) from error
