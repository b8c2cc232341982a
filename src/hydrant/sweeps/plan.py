"""The files of a sweep: `sweep.json`, its jobs, written before the first one starts; and `sweep.csv`, their results.

The progress of its runs, read from their folders: by any process, on any machine that sees the folders. What is
repeated for all runs (`sparing`) takes a tenth of the time at most.
"""

import math
import os
import platform
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from msgspec import to_builtins
from msgspec.structs import replace
from omegaconf import DictConfig

from hydrant.config.groups import REPETITIONS
from hydrant.errors import ConfigError, RecordError
from hydrant.files.on_disk import as_csv, locked, open_regular, replace_file, write_json
from hydrant.files.read_file import read_json
from hydrant.files.redaction import redacted
from hydrant.records import PlannedJob, RunProgress, SweepPlan, SweepProcess
from hydrant.runs import folder as run_folder
from hydrant.runs.folder import METRICS, RunFolder, RunStatus, is_run_folder, runs_of_sweep
from hydrant.runs.lock import is_held, is_in_use, locking_process, locks, note_no_lock, shared, this_machine
from hydrant.runs.record import parse_row
from hydrant.terminal.console import notice, relative

COMMANDS = ".commands"
"""In the folder of a sweep: has for each command that is at work a folder with its process id, which it has locked."""


@contextmanager
def named_command(sweep: Path) -> Generator[None]:
    """Let others find this process by the folder of its sweep, also while it checks the jobs."""
    place = sweep / COMMANDS / str(os.getpid())

    def remove() -> None:
        others = [path for path in place.parent.glob("*") if path != place]
        killed = [path for path in others if is_in_use(place) and not is_in_use(path)]  # where locks are seen
        run_folder.remove_if_empty([place, *killed, place.parent])

    with ExitStack() as stack:
        with suppress(ConfigError):  # where nothing can be written, only finished jobs are read
            stack.enter_context(shared(place))
            stack.callback(remove)
        yield


def write_plan(sweep: Path, plan: SweepPlan) -> None:
    """Write `sweep.json`, without secrets, for the sweep of this process."""
    here = this_machine()
    jobs = [
        replace(
            job,
            run=os.path.relpath((sweep / job.run).resolve(), sweep.resolve()),
            machine="" if job.machine == here else job.machine,
        )
        for job in plan.jobs
    ]
    this_command = SweepProcess(os.getpid(), here)
    commands = [*(command for command in plan.commands if command != this_command), this_command]
    plan = replace(plan, jobs=jobs, commands=commands, machine=here, host=platform.node())
    write_json(sweep / run_folder.SWEEP_PLAN, to_builtins(plan))


def at_work(sweep: Path, plan: SweepPlan) -> list[int]:
    """Return the processes of its commands on this machine that hold the lock of the sweep's folder."""
    here = [command.pid for command in plan.commands if command.machine == this_machine()]
    return [pid for pid in here if locks(pid, sweep)]


def usable_plan(sweep: Path) -> tuple[SweepPlan, str]:
    """Return the plan of the sweep's newest command, and of others that are at work; empty if there is none.

    If the file is damaged, it is empty too, and the text says what is wrong: the runs can be read without.
    """
    remedy = "the same command writes it again"
    try:
        plan = read_json(sweep / run_folder.SWEEP_PLAN, SweepPlan, remedy) or SweepPlan(0.0, [])
    except RecordError as error:
        return SweepPlan(0.0, []), f"{error}; until then, missing jobs are unknown"
    jobs = [replace(job, machine=job.machine or plan.machine) for job in plan.jobs]
    return replace(plan, jobs=jobs), ""


def recorded_jobs(sweep: Path) -> dict[str, Sequence[str]]:
    """Return the overrides of the job in each folder of a sweep, including jobs that another command has planned."""
    jobs: dict[str, Sequence[str]] = {job.run: job.overrides for job in usable_plan(sweep)[0].jobs}
    present = [path.name for path in sweep.iterdir()] if sweep.is_dir() else []
    for name in {*jobs, *present}:
        with suppress(RecordError):  # then the plan has them, or the job itself reports the damage
            jobs[name] = run_folder.read_overrides(sweep / name) or jobs.get(name, [])
    return {name: overrides for name, overrides in jobs.items() if overrides}


def adds_seeds(sweep: Path, recorded: Mapping[str, Sequence[str]], jobs: Sequence[Sequence[str]]) -> bool:
    """Return whether jobs have seeds (or folds) that a sweep lacks, of which two or more have results."""
    known = {name: _repetition(overrides) for name, overrides in recorded.items()}
    if {*map(_repetition, jobs)} <= {*known.values()}:
        return False
    return len({known[name] for name in known if RunFolder(sweep / name).status == RunStatus.FINISHED}) > 1


def _repetition(overrides: Sequence[str]) -> tuple[str | None, ...]:
    choices = run_folder.choices_in(overrides)
    return tuple(choices.get(key) for key in REPETITIONS)


class SweepFiles:
    """What one `--multirun` command writes into the folder of its sweep."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._began = time.time()  # of the machine's clock, which may be set meanwhile
        self._began_monotonic = time.monotonic()
        self.jobs: dict[Path, PlannedJob] = {}  # by folder, in their order
        self.keeps_plan = False  # the jobs and commands in sweep.json: others are at work in the folder
        self.adds_seeds = False  # to a sweep whose results could be seen
        self.queues: Sequence[str] = ()  # of the executor
        self.of_jobs = 0.0  # processor seconds of the processes of jobs that have ended
        # Wall and processor seconds: of all starts, and what is in it of this one.
        self.total = self._counted = 0.0, 0.0

    @property
    def wall_seconds(self) -> float:
        """Those of this start so far."""
        return time.monotonic() - self._began_monotonic

    @property
    def processor_seconds(self) -> float:
        """Those of this process, and of the processes of jobs that were not killed, also on other machines."""
        return self.of_jobs + time.process_time()

    def runs(self) -> list[RunFolder]:
        """Return the runs of the jobs in their order, then the other runs in the folder."""
        runs = [RunFolder(path, job.overrides, job.refused or "") for path, job in self.jobs.items()]
        return runs + run_folder.runs_of_sweep(self.folder, without=self.jobs)

    def add(self, jobs: Iterable[tuple[Path, Sequence[str]]]) -> None:
        """Plan jobs: resolved folders with overrides."""
        for path, words in jobs:
            earlier = RunFolder(path).summary_time
            self.jobs[path] = PlannedJob(
                f"{path}", redacted([*words]), None, earlier, os.getpid(), this_machine()
            )
        self.write_plan()

    def check_replaced(self) -> None:
        """Check that a sweep wrote the files that this one replaces. It writes its plan first.

        Raises:
            ConfigError: no sweep wrote them.
        """
        present = [name for name in run_folder.REPLACED_BY_SWEEP if (self.folder / name).exists()]
        plan, damage = usable_plan(self.folder)
        if present and not plan.began and not (damage and run_folder.SWEEP_CONFIG in present):
            message = f"{relative(self.folder / present[0])} is of no sweep, and this sweep would replace it"
            remedy = "move it, or give another folder, or name=<folder>"
            raise ConfigError("hydra.sweep.dir", message, remedy=remedy)

    def write_plan(self) -> None:
        """Write what the sweep plans, with what other commands at work have planned, and what all starts have used."""
        with print_write_errors(self.folder / run_folder.SWEEP_PLAN), self._locked():
            file, used = usable_plan(self.folder)[0], (self.wall_seconds, self.processor_seconds)
            wall, cpu = self.total = (  # of this start too, if somebody has damaged the file
                max(file.wall_seconds, self.total[0]) + used[0] - self._counted[0],
                max(file.processor_seconds, self.total[1]) + used[1] - self._counted[1],
            )
            self._counted = used
            kept, commands = (file.jobs, file.commands) if self.keeps_plan else ([], [])
            self.keeps_plan = True  # from now on, what others add is of commands at work
            jobs = {Path(os.path.realpath(self.folder / job.run)): job for job in kept} | self.jobs
            num, self.adds_seeds = file.num_seed_additions + self.adds_seeds, False  # it counts once
            queues = [*dict.fromkeys([*file.queues, *self.queues])]
            plan = SweepPlan(self._began, [*jobs.values()], commands, "", "", wall, cpu, num, queues)
            write_plan(self.folder, plan)

    def write_config(self, config: DictConfig) -> None:
        from hydrant.runs.job import (
            redacted_yaml,
        )  # late: it imports Hydra, which compare and status do without

        with self._locked():
            replace_file(self.folder / run_folder.SWEEP_CONFIG, redacted_yaml(config))

    def write_table(self, runs: Sequence[RunFolder]) -> None:
        with print_write_errors(self.folder / run_folder.SWEEP_TABLE), self._locked():
            write_sweep_csv(self.folder, runs)

    def refresh(self) -> None:
        self.write_plan()
        self.write_table(self.runs())

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Let one command at a time write the files of a sweep."""
        lock = self.folder / run_folder.SWEEP_LOCK
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(lock))
            except OSError as error:
                consequence = "if the sweep is started twice at once, some seconds may not be counted"
                note_no_lock(lock, error.strerror or str(error), consequence)
            yield


@contextmanager
def print_write_errors(path: Path) -> Generator[None]:
    """Print an OSError instead of raising it, so that the jobs continue."""
    try:
        yield
    except OSError as error:
        notice(f"{path} cannot be written: {error.strerror or error}")


def write_sweep_csv(folder: Path, runs: Sequence[RunFolder]) -> None:
    """Write `sweep.csv` atomically: a row per run with its overrides, status and results."""
    choices = sorted({key for run in runs for key in run.choices})
    metrics = sorted({key for run in runs for key in run.summary.get("metrics") or {}})
    table: list[list[Any]] = [
        ["run", *choices, "status", "num_updates", "best", "best_num_updates", *metrics, "error"]
    ]
    for run in runs:
        best, values = run.summary.get("best") or {}, run.summary.get("metrics") or {}
        table.append(
            [run.path.name, *(run.choices.get(c, "") for c in choices), run.state]
            + [run.summary.get("num_updates", ""), best.get("value", ""), best.get("num_updates", "")]
            + [values.get(m, "") for m in metrics]
            + [run.error]
        )
    replace_file(folder / run_folder.SWEEP_TABLE, as_csv(table))


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
