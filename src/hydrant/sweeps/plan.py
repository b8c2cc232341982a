"""`sweep.json`: the jobs of a sweep, written before the first one starts."""

import os
import platform
from pathlib import Path

from msgspec import to_builtins
from msgspec.structs import replace

from hydrant.errors import ConfigError, RecordError
from hydrant.files.atomic_write import write_json
from hydrant.files.read_file import read_json
from hydrant.records.files import Command, Plan
from hydrant.runs.folder import REPLACED_BY_SWEEP, SWEEP_CONFIG, SWEEP_PLAN
from hydrant.runs.lease import this_machine
from hydrant.runs.lock import locks
from hydrant.terminal.console import relative

SUBMITIT = ".submitit"
"""The folder of submitit's files, in that of a sweep."""


def write_plan(sweep: Path, plan: Plan) -> None:
    """Write `sweep.json`, without secrets, for the sweep of this process."""
    here = this_machine()
    jobs = [
        replace(
            job, run=os.path.relpath((sweep / job.run).resolve(), sweep.resolve()),
            machine="" if job.machine == here else job.machine,
        )
        for job in plan.jobs
    ]  # fmt: skip
    this_command = Command(os.getpid(), here)
    commands = [*(command for command in plan.commands if command != this_command), this_command]
    plan = replace(plan, jobs=jobs, commands=commands, machine=here, host=platform.node())
    write_json(sweep / SWEEP_PLAN, to_builtins(plan))


def read_plan(sweep: Path) -> Plan:
    """Return the plan of the sweep's newest command, and of others that are at work; empty if there is none.

    Raises:
        RecordError: the file is damaged.
    """
    plan = read_json(sweep / SWEEP_PLAN, Plan, "the same command writes it again") or Plan(0.0, [])
    jobs = [replace(job, machine=job.machine or plan.machine) for job in plan.jobs]
    return replace(plan, jobs=jobs)


def at_work(sweep: Path, plan: Plan) -> list[int]:
    """Return the processes of its commands on this machine that hold the lock of the sweep's folder."""
    here = [command.pid for command in plan.commands if command.machine == this_machine()]
    return [pid for pid in here if locks(pid, sweep)]


def check_is_of_a_sweep(folder: Path) -> None:
    """Check that a sweep wrote the files of a folder. It writes its plan first.

    Raises:
        ConfigError: no sweep wrote them, so they must not be replaced.
    """
    present = [name for name in REPLACED_BY_SWEEP if (folder / name).exists()]
    plan, damage = usable_plan(folder)
    if present and not plan.began and not (damage and SWEEP_CONFIG in present):
        message = f"{relative(folder / present[0])} is of no sweep, and this sweep would replace it"
        raise ConfigError(
            "hydra.sweep.dir", message, remedy="move it, or give another folder, or name=<folder>"
        )


def usable_plan(sweep: Path) -> tuple[Plan, str]:
    """Return the plan; an empty one and what is wrong if its file is damaged, because the runs can be read without."""
    try:
        return read_plan(sweep), ""
    except RecordError as error:
        return Plan(0.0, []), f"{error}; until then, missing jobs are unknown"
