"""`stop`: ask runs and sweeps to save and end. Imports no torch, and nothing of the folders is run."""

import os
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal

from hydrant.config.command_line import Flags, named_folder
from hydrant.errors import ConfigError
from hydrant.records.answers import Answer
from hydrant.runs.folder import RunFolder, RunStatus, is_run_folder, newest_folders, runs_of_sweep
from hydrant.runs.lock import CannotStop, ask_to_stop, is_in_use, leasing_process, locking_process
from hydrant.sweeps.executors import cancel
from hydrant.sweeps.plan import at_work, usable_plan
from hydrant.terminal.console import notice, relative, tell

_WAIT_SECONDS = 60.0
"""How long the command waits until a process has saved and ended."""

_EXAMPLE = "hydrant stop outputs/lr_study"


class Stopped(Answer):
    """What became of a run or a sweep.

    Attributes:
        outcome: `stopped`; `stopping`: it still saves; `cancelled`: by its queue; `idle`: nothing was at work there.
        pids: The processes that were asked.
        queued: What the queue of the launcher has cancelled.
        state: Of a run, as in `status`; empty for a sweep.
    """

    folder: str
    outcome: Literal["stopped", "stopping", "cancelled", "idle"]
    pids: Sequence[int] = ()
    queued: Sequence[str] = ()
    state: str = ""


class Stop(Answer):
    """What became of each run or sweep."""

    stopped: Sequence[Stopped]


def main(arguments: Sequence[str]) -> int:
    """Stop runs or sweeps and return the exit status."""
    options, words = Flags("stop", now=False).split(arguments)
    if not words:
        raise ConfigError("FOLDER", remedy=f"give a run or a sweep{newest_folders(_EXAMPLE)}")
    stopped = [_stop(_folder(word), now=options.now) for word in words]
    tell("\n".join(map(_text, stopped)), Stop(stopped))
    return 0


def _folder(word: str) -> Path:
    folder = named_folder(word)
    if not is_run_folder(folder) and not usable_plan(folder)[0].jobs and not runs_of_sweep(folder):
        raise ConfigError("FOLDER", f"no runs in {word}", remedy="give the folder of a sweep or of a run")
    return folder


def _stop(folder: Path, *, now: bool) -> Stopped:
    """Stop the process of a run, or those of a sweep, which stop its jobs; without one, the jobs that it has left.

    Raises:
        ConfigError: a run trains in one process with others.
        CannotStop: the process runs on another machine, or cannot be found.
    """
    plan, damage = usable_plan(folder)
    if damage:
        notice(damage)
    working = dict.fromkeys(at_work(folder, plan), folder)
    if (pid := locking_process(folder)) is not None:
        _check_alone(folder, pid)
        working[pid] = folder
    if (stopped := _stop_all(folder, working, now=now)) is not None:
        return stopped
    if jobs := cancel(folder):
        return Stopped(relative(folder), "cancelled", [], jobs, _state(folder))
    known = [folder / job.run for job in plan.jobs] + [run.path for run in runs_of_sweep(folder)]
    inside = folder.resolve()  # the plan or a link of a stranger may name a run elsewhere
    runs = sorted({run for path in known if (run := Path(os.path.realpath(path))).is_relative_to(inside)})
    left = {pid: run for run in runs if (pid := locking_process(run)) is not None}
    if (stopped := _stop_all(folder, left, now=now)) is not None:
        return stopped
    elsewhere = [run for run in (folder, *runs) if RunFolder(run).state == RunStatus.RUNNING_ELSEWHERE]
    if elsewhere:
        host = RunFolder(elsewhere[0]).summary.get("host") or "another machine"
        command = f"hydrant stop {shlex.quote(str(folder))}"
        raise CannotStop(f"{relative(folder)} runs on {host}; call there: {command}")
    if is_in_use(folder):
        where = "stop it where it was started, such as in another container"
        raise CannotStop(f"{relative(folder)}: a process that cannot be found here works at it; {where}")
    return Stopped(relative(folder), "idle", state=_state(folder))


def _check_alone(folder: Path, pid: int) -> None:
    """Raise ConfigError if a process trains other runs of the same sweep too: a signal would stop them all."""
    runs = [run.path for run in runs_of_sweep(folder.parent) if leasing_process(run.path) == pid]
    if len(runs) > 1:
        sweep = shlex.quote(relative(folder.parent))
        message = f"{relative(folder)} is one of {len(runs)} runs that train in one process"
        raise ConfigError("FOLDER", message, remedy=f"stop them together: hydrant stop {sweep}")


def _stop_all(folder: Path, working: Mapping[int, Path], *, now: bool) -> Stopped | None:
    """Ask all processes at once, each with the folder that it locks; return None if none of them works any more."""
    with ThreadPoolExecutor(len(working) or 1) as threads:
        ended = list(threads.map(partial(_ask, now=now), working.values(), working))
    pids = [pid for pid, has_ended in zip(working, ended, strict=True) if has_ended is not None]
    outcome = "stopping" if False in ended else "stopped"
    return Stopped(relative(folder), outcome, pids, state=_state(folder)) if pids else None


def _ask(folder: Path, pid: int, *, now: bool) -> bool | None:
    """Ask the process that has locked a folder to stop, and wait for it; return what `ask_to_stop` does."""
    try:
        return ask_to_stop(folder, pid, now=now, seconds=_WAIT_SECONDS)
    except OSError as error:
        message = f"{relative(folder)} cannot be written ({error.strerror}), so nothing was sent"
        raise CannotStop(message) from error


def _state(folder: Path) -> str:
    """Return the state of a run; "" for a sweep."""
    return RunFolder(folder).state if is_run_folder(folder) else ""


def _text(entry: Stopped) -> str:
    """Return what became of a folder, in words."""
    state, processes = f" ({entry.state})" if entry.state else "", ", ".join(map(str, entry.pids))
    match entry.outcome:
        case "idle":
            return f"{entry.folder}: nothing is at work there{state}"
        case "cancelled":
            return f"{entry.folder}: cancelled {', '.join(entry.queued)}; the same command continues"
        case "stopping":
            return f"{entry.folder}: process {processes} was asked to stop and still saves{state}"
        case _:
            return f"{entry.folder}: stopped{state}; the same command continues"
