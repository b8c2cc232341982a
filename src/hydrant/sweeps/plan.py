"""`sweep.json`: the jobs of a sweep, written before the first one starts."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import to_builtins

from hydrant.errors import ConfigError, RecordError
from hydrant.files.atomic_write import write_json
from hydrant.files.read_file import read_json
from hydrant.records.files import Command, SweepFile, SweepJob
from hydrant.runs.folder import REPLACED_BY_SWEEP, SWEEP_CONFIG, SWEEP_PLAN
from hydrant.runs.lease import this_machine
from hydrant.runs.lock import locks
from hydrant.terminal.console import relative

SUBMITIT = ".submitit"
"""The folder of submitit's files, in that of a sweep."""


@dataclass(frozen=True)
class PlannedJob:
    """A job of a sweep, started or not."""

    folder: Path
    overrides: Sequence[str]
    refused: str = ""  # why the job could not start
    earlier: float = 0.0  # when its summary was written before the newest command, in unix seconds; 0: never
    pid: int | None = None  # of the command that planned it
    machine: str = ""  # `this_machine()` of that command


@dataclass(frozen=True)
class Plan:
    """The jobs of a sweep, in their order."""

    began: float  # when the newest command of the sweep started, in unix seconds
    jobs: Sequence[PlannedJob]
    commands: Sequence[Command] = ()  # that wrote it, as long as others were at work
    host: str = ""  # the name of the machine of the newest command
    wall_seconds: float = 0.0  # of all starts of the sweep, up to when this was written
    processor_seconds: float = 0.0
    num_extensions: int = 0  # commands that added seeds after runs of others had results

    def at_work(self, sweep: Path) -> list[int]:
        """Return the processes of these commands on this machine that hold the lock of the sweep's folder."""
        here = [command.pid for command in self.commands if command.machine == this_machine()]
        return [pid for pid in here if locks(pid, sweep)]


def write_plan(sweep: Path, plan: Plan) -> None:
    """Write `sweep.json`, without secrets, for the sweep of this process."""
    root, here = sweep.resolve(), this_machine()
    jobs = [
        SweepJob(
            os.path.relpath(job.folder.resolve(), root), [*job.overrides], job.refused or None,
            job.earlier, job.pid, "" if job.machine == here else job.machine,
        )
        for job in plan.jobs
    ]  # fmt: skip
    own = Command(os.getpid(), here)
    commands = [*(command for command in plan.commands if command != own), own]
    seconds = plan.wall_seconds, plan.processor_seconds
    file = SweepFile(plan.began, jobs, commands, here, platform.node(), *seconds, plan.num_extensions)
    write_json(sweep / SWEEP_PLAN, to_builtins(file))


def read_plan(sweep: Path) -> Plan:
    """Return the plan of the sweep's newest command, and of others that are at work; empty if there is none.

    Raises:
        RecordError: the file is damaged.
    """
    file = read_json(sweep / SWEEP_PLAN, SweepFile, "; the same command writes it again")
    if file is None:
        return Plan(0.0, [])
    jobs = [
        PlannedJob(
            sweep / job.run,
            job.overrides,
            job.refused or "",
            job.earlier,
            job.pid,
            job.machine or file.machine,
        )
        for job in file.jobs
    ]
    seconds = file.wall_seconds, file.processor_seconds
    return Plan(file.began, jobs, file.commands, file.host, *seconds, file.num_extensions)


def check_is_of_a_sweep(folder: Path) -> None:
    """Check that a sweep wrote the files of a folder. It writes its plan first.

    Raises:
        ConfigError: no sweep wrote them, so they must not be replaced.
    """
    own = [name for name in REPLACED_BY_SWEEP if (folder / name).exists()]
    plan, damage = usable_plan(folder) if SWEEP_PLAN in own else (Plan(0.0, []), "")
    if own and not plan.began and not (damage and SWEEP_CONFIG in own):
        message = f"{relative(folder / own[0])} is of no sweep, and this sweep would replace it"
        raise ConfigError(
            "hydra.sweep.dir", message, remedy="move it, or give another folder, or name=<folder>"
        )


def usable_plan(sweep: Path) -> tuple[Plan, str]:
    """Return the plan; an empty one and what is wrong if its file is damaged, because the runs can be read without."""
    try:
        return read_plan(sweep), ""
    except RecordError as error:
        return Plan(0.0, []), f"{error}; until then, missing jobs are unknown"
