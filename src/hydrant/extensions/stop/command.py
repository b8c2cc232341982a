"""`stop`: ask runs and sweeps to save and end. Imports no torch, and nothing of the folders is run.

Ask the process that holds a lock to stop, and never another process. The lease names it, but anybody may have written
that, and process ids are used again. So a handle of the process is opened (a pidfd), then the kernel is asked whether
that process holds the lock, and the signal goes to the handle. A second request sends no second signal, because a run
takes that for "at once": a file in the folder such as `.stop.1234.56789` says that this process was asked.
"""

import os
import select
import shlex
import signal
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Literal

from hydrant.config.check import class_of
from hydrant.config.command_line import Flags, named_folder
from hydrant.errors import ConfigError, shown
from hydrant.records import Answer
from hydrant.runs.folder import RunFolder, RunStatus, is_run_folder, newest_folders, runs_of_sweep
from hydrant.runs.lock import is_in_use, leasing_process, locking_process, locks
from hydrant.safety.targets import exporting_packages, lies_under
from hydrant.sweeps.executors.base import CannotStop, Executor
from hydrant.sweeps.plan import COMMANDS, at_work, sweep_progress, usable_plan
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
    folder = Path(os.path.abspath(word))  # noqa: PTH100
    has_runs = _state(folder) or usable_plan(named_folder(word))[0].jobs or runs_of_sweep(folder)
    if not (has_runs or _commands(folder)):
        raise ConfigError("FOLDER", f"no runs in {word}", remedy="give the folder of a sweep or of a run")
    return folder


def _commands(sweep: Path) -> dict[int, Path]:
    """Return the processes that may work at a sweep, also while they check its jobs, with what they lock."""
    return {int(path.name): path for path in sweep.glob(f"{COMMANDS}/*") if path.name.isdecimal()}


def _stop(folder: Path, *, now: bool) -> Stopped:
    """Stop the process of a run, or those of a sweep, which stop its jobs; without one, the jobs that it has left.

    Raises:
        ConfigError: a run trains in one process with others.
        CannotStop: the process runs on another machine, or cannot be found.
    """
    plan, damage = usable_plan(folder)
    if damage:
        notice(damage)
    working = _commands(folder) | dict.fromkeys(at_work(folder, plan), folder)
    if (pid := locking_process(folder)) is not None:
        _check_alone(folder, pid)
        working[pid] = folder
    if (stopped := _stop_all(folder, working, [], now=now)) is not None:
        return stopped
    queued = cancel(folder)
    known = [folder / job.run for job in plan.jobs] + [run.path for run in runs_of_sweep(folder)]
    inside = folder.resolve()  # the plan or a link of a stranger may name a run elsewhere
    runs = sorted({run for path in known if (run := Path(os.path.realpath(path))).is_relative_to(inside)})
    left = {pid: run for run in runs if (pid := locking_process(run)) is not None}
    if (stopped := _stop_all(folder, left, queued, now=now)) is not None:
        return stopped
    elsewhere = [run for run in (folder, *runs) if RunFolder(run).state == RunStatus.RUNNING_ELSEWHERE]
    if elsewhere:
        host = RunFolder(elsewhere[0]).summary.get("host") or "another machine"
        reason = f"it runs on {host}; call there: hydrant stop {shlex.quote(str(folder))}"
    elif is_in_use(folder):
        reason = "a process that cannot be found here works at it; stop it where it was started"
    elif (state := _state(folder)) == RunStatus.QUEUED:
        sweep = shlex.quote(relative(folder.parent))
        reason = f"its launcher cannot cancel it alone; stop its sweep: hydrant stop {sweep}"
    else:
        return Stopped(relative(folder), "idle", state=state)
    raise CannotStop(f"{relative(folder)}: {reason}")


def _check_alone(folder: Path, pid: int) -> None:
    """Raise ConfigError if a process trains other runs of the same sweep too: a signal would stop them all."""
    runs = [run.path for run in runs_of_sweep(folder.parent) if leasing_process(run.path) == pid]
    if len(runs) > 1:
        sweep = shlex.quote(relative(folder.parent))
        message = f"{relative(folder)} is one of {len(runs)} runs that train in one process"
        raise ConfigError("FOLDER", message, remedy=f"stop them together: hydrant stop {sweep}")


def _stop_all(folder: Path, working: Mapping[int, Path], queued: list[str], *, now: bool) -> Stopped | None:
    """Ask all processes at once, each with the folder that it locks; return None if none works, and none is `queued`.

    A queue that has cancelled something may have sent SIGTERM, which a run would take for "at once" if it comes again.
    """
    signum = signal.SIGUSR1 if queued else signal.SIGTERM
    ask = partial(ask_to_stop, now=now, seconds=_WAIT_SECONDS, signum=signum)
    try:
        with ThreadPoolExecutor(len(working) or 1) as threads:
            ended = list(threads.map(ask, working.values(), working))
    except OSError as error:
        raise CannotStop(f"{relative(folder)} cannot be written ({error.strerror})") from error
    pids = [pid for pid, has_ended in zip(working, ended, strict=True) if has_ended is not None]
    outcome = "stopping" if False in ended else "stopped" if pids else "cancelled"
    return Stopped(relative(folder), outcome, pids, queued, _state(folder)) if pids or queued else None


def _state(folder: Path) -> str:
    """Return the state of a run, also of one that its sweep has planned; "" for a sweep."""
    if is_run_folder(folder):
        return RunFolder(folder).state
    return next((run.state for run in sweep_progress(folder.parent) if run.run == folder.name), "")


def _text(entry: Stopped) -> str:
    """Return what became of a folder, in words."""
    state, processes = f" ({entry.state})" if entry.state else "", ", ".join(map(str, entry.pids))
    cancelled = f"cancelled {', '.join(entry.queued)}; " if entry.queued else ""
    match entry.outcome:
        case "idle":
            return f"{entry.folder}: nothing is at work there{state}"
        case "stopping":
            return f"{entry.folder}: {cancelled}process {processes} was asked to stop and still saves{state}"
        case _:
            stopped = f"stopped{state}; " if entry.pids else ""
            return f"{entry.folder}: {cancelled}{stopped}the same command continues"


ASKED = ".stop"
_BETWEEN_SECONDS = 0.5  # in which a process takes the first signal


def ask_to_stop(folder: Path, pid: int, *, now: bool, seconds: float, signum: int = 15) -> bool | None:
    """Ask a process that has locked a folder to save and end, and wait; return whether it has ended.

    Returns None if that process does not lock the folder, any more or at all: nothing is sent.

    Args:
        now: it ends at once, without saving.
        seconds: how long to wait.
        signum: lets it save; by default SIGTERM.

    Raises:
        CannotStop: this machine or the user may not signal the process.
        OSError: the folder cannot be written.
    """
    is_first = False
    with _handle(pid) as handle:
        if handle is None or pid == os.getpid() or not locks(pid, folder):
            return None
        asked = folder / f"{ASKED}.{pid}.{_started(pid)}"
        with suppress(FileExistsError):
            asked.touch(exist_ok=False)
            is_first = True
        try:
            if is_first:
                signal.pidfd_send_signal(handle, signum)
            # Of signals that are pending together the lower number comes first, and only a later SIGINT is urgent.
            if now and not (is_first and _has_ended(handle, _BETWEEN_SECONDS)):
                signal.pidfd_send_signal(handle, signal.SIGINT)
            has_ended = _has_ended(handle, seconds)
        except ProcessLookupError:  # it has just ended
            has_ended = True
        except PermissionError as error:
            asked.unlink()
            raise CannotStop(f"process {pid} belongs to another user; ask that user to stop it") from error
    if has_ended:
        asked.unlink(missing_ok=True)
    return has_ended


def _has_ended(handle: int, seconds: float) -> bool:
    """Wait until a process has ended, these seconds at most; return whether it has."""
    return bool(select.select([handle], [], [], seconds)[0])


@contextmanager
def _handle(pid: int) -> Generator[int | None]:
    """Yield a handle of a process, which stays that of this process; None if there is no such process."""
    if not hasattr(os, "pidfd_open"):
        raise CannotStop(f"this system has no handles of processes; stop it by kill -TERM {pid}")
    with ExitStack() as stack:
        handle = None
        with suppress(ProcessLookupError):
            stack.callback(os.close, handle := os.pidfd_open(pid))
        yield handle


def _started(pid: int) -> str:
    """Return when a process started, in ticks of the kernel's clock: a later process with the same id has another."""
    with suppress(OSError, IndexError):
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[19]
    return ""


def cancel(folder: Path) -> list[str]:
    """Let the queues that may have jobs of a sweep cancel them, or that of one of its runs; return what they cancelled.

    The sweep records the classes of its launchers that have a queue. Only those of installed extensions are asked.

    Raises:
        CannotStop: a queue refuses it.
    """
    sweep, cancelled = folder.parent if _state(folder) else folder, list[str]()
    for path in usable_plan(sweep)[0].queues:
        if lies_under(path, exporting_packages()):
            cancelled += class_of(path, "hydra.launcher", "launcher", Executor).cancel(folder)
        else:
            notice(f"{relative(sweep)}: {shown(path)} is not installed here, so its queue is not known")
    return cancelled
