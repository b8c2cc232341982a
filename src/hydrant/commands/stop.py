"""`stop`: ask runs and sweeps to save and end. Imports no torch, and nothing of the folders is run."""

import os
import platform
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from hydrant.config.command_line import Flags, named_folder
from hydrant.errors import ConfigError
from hydrant.records.answers import Stop, Stopped
from hydrant.runs.folder import RunFolder, RunStatus, is_run_folder, newest_folders, runs_of_sweep
from hydrant.runs.lock import CannotStop, ask_to_stop, is_held, is_in_use, leasing_process, locking_process
from hydrant.sweeps.executors import cancel
from hydrant.sweeps.plan import at_work, usable_plan
from hydrant.terminal.console import notice, relative, tell

_WAIT_SECONDS = 60.0
"""How long the command waits until a process has saved and ended."""

_EXAMPLE = "hydrant stop outputs/lr_study"
_ELSEWHERE = "stop it where it was started, such as in another container"


def main(arguments: Sequence[str]) -> int:
    """Stop runs or sweeps and return the exit status."""
    options, words = Flags("stop", now=False).split(arguments)
    if not words:
        raise ConfigError("FOLDER", remedy=f"give a run or a sweep{newest_folders(_EXAMPLE)}")
    folders = [_folder(word) for word in words]
    stopped = [(_stop_run if is_run_folder(f) else _stop_sweep)(f, now=options.now) for f in folders]
    tell("\n".join(map(_text, stopped)), Stop(stopped))
    return 0


def _folder(word: str) -> Path:
    folder = named_folder(word)
    if not is_run_folder(folder) and not usable_plan(folder)[0].jobs and not runs_of_sweep(folder):
        raise ConfigError("FOLDER", f"no runs in {word}", remedy="give the folder of a sweep or of a run")
    return folder


def _stop_run(folder: Path, *, now: bool) -> Stopped:
    """Stop a run.

    Raises:
        ConfigError: it trains in one process with others.
        CannotStop: its process is not one of this machine that can be found.
    """
    if (pid := locking_process(folder)) is not None:
        _check_alone(folder, pid)
        return _signalled(folder, pid, now=now)
    state = RunFolder(folder).state
    if state == RunStatus.RUNNING or is_held(folder):
        raise CannotStop(
            f"{relative(folder)}: its lease names no process here that has its lock; {_ELSEWHERE}"
        )
    if state != RunStatus.RUNNING_ELSEWHERE:
        return Stopped(relative(folder), "idle", state=state)
    if jobs := cancel(folder):
        return Stopped(relative(folder), "cancelled", [], jobs, state)
    host = RunFolder(folder).summary.get("host")
    command = f"hydrant stop {shlex.quote(str(folder))}"
    raise CannotStop(f"{relative(folder)} runs on {host}; call there: {command}")


def _check_alone(folder: Path, pid: int) -> None:
    """Raise ConfigError if a process trains other runs of the same sweep too: a signal would stop them all."""
    runs = [run.path for run in runs_of_sweep(folder.parent) if leasing_process(run.path) == pid]
    if len(runs) > 1:
        sweep = shlex.quote(relative(folder.parent))
        message = f"{relative(folder)} is one of {len(runs)} runs that train in one process"
        raise ConfigError("FOLDER", message, remedy=f"stop them together: hydrant stop {sweep}")


def _stop_sweep(folder: Path, *, now: bool) -> Stopped:
    """Stop the processes of a sweep, which stop its jobs; without one, the jobs that it has left.

    Raises:
        CannotStop: it runs on another machine, or its process cannot be found.
    """
    plan, damage = usable_plan(folder)
    if damage:
        notice(damage)
    if (stopped := _stop_all(folder, dict.fromkeys(at_work(folder, plan), folder), now=now)) is not None:
        return stopped
    if jobs := cancel(folder):
        return Stopped(relative(folder), "cancelled", [], jobs)
    known = [folder / job.run for job in plan.jobs] + [run.path for run in runs_of_sweep(folder)]
    inside = folder.resolve()  # the plan or a link of a stranger may name a run elsewhere
    runs = {run for path in known if (run := Path(os.path.realpath(path))).is_relative_to(inside)}
    left = {pid: run for run in sorted(runs) if (pid := locking_process(run)) is not None}
    if (stopped := _stop_all(folder, left, now=now)) is not None:
        return stopped
    if any(RunFolder(run).state == RunStatus.RUNNING_ELSEWHERE for run in runs):
        host = plan.host if plan.host != platform.node() else "another machine"
        command = f"hydrant stop {shlex.quote(str(folder))}"
        raise CannotStop(f"{relative(folder)} runs on {host or 'another machine'}; call there: {command}")
    if is_in_use(folder):
        raise CannotStop(f"{relative(folder)}: a process that cannot be found here works at it; {_ELSEWHERE}")
    return Stopped(relative(folder), "idle")


def _stop_all(folder: Path, working: Mapping[int, Path], *, now: bool) -> Stopped | None:
    """Ask all processes at once, each with the folder that it locks; return None if none of them works any more."""
    with ThreadPoolExecutor(len(working) or 1) as threads:
        stopped = list(threads.map(partial(_signalled, now=now), working.values(), working))
    pids = [pid for one in stopped for pid in one.pids]
    outcome = "stopping" if any(one.outcome == "stopping" for one in stopped) else "stopped"
    return Stopped(relative(folder), outcome, pids) if pids else None


def _signalled(folder: Path, pid: int, *, now: bool) -> Stopped:
    """Ask the process that has locked a folder to stop, and wait for it."""
    name = relative(folder)
    try:
        has_ended = ask_to_stop(folder, pid, now=now, seconds=_WAIT_SECONDS)
    except OSError as error:
        raise CannotStop(f"{name} cannot be written ({error.strerror}), so nothing was sent") from error
    state = RunFolder(folder).state if is_run_folder(folder) else ""
    if has_ended is None:
        return Stopped(name, "idle", state=state)
    return Stopped(name, "stopped" if has_ended else "stopping", [pid], state=state)


def _text(entry: Stopped) -> str:
    """Return what became of a folder, in words."""
    state, processes = f" ({entry.state})" if entry.state else "", ", ".join(map(str, entry.pids))
    match entry.outcome:
        case "idle":
            return f"{entry.folder}: nothing is at work there{state}"
        case "cancelled":
            return f"{entry.folder}: SLURM cancels {', '.join(entry.slurm_jobs)}; the same command continues"
        case "stopping":
            return f"{entry.folder}: process {processes} was asked to stop and still saves{state}"
        case _:
            return f"{entry.folder}: stopped{state}; the same command continues"
