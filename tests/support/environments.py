"""Processes in an environment that fails: forks of this process with other mounts, rights or streams."""

import ctypes
import faulthandler
import fcntl
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from killing import differing, kill
from processes import descendants, fork
from run_folders import summary
from tiny_runs import TINY, tiny_job

from hydrant import cli
from hydrant.runs.execute import execute
from hydrant.runs.job import report
from hydrant.terminal.console import standard_streams
from hydrant.training import loop

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x20000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x1, 0x20, 0x1000, 0x4000, 0x40000
_HANG_SECONDS = 60


@dataclass(frozen=True)
class Ending:
    """How a process ended, and what it printed."""

    status: int | None  # None: it hung and was killed
    output: str

    def problems(self, folder: Path, statuses: Collection[int | None]) -> list[str]:
        """Return what is wrong with the end of a run: a hang, a traceback, an exit status that is not allowed."""
        last = self.output.strip().rpartition("\n")[2]
        wrong = {
            f"exit status {self.status}: {self.output[-3000:]}": self.status not in statuses,
            f"a traceback: {self.output[-500:]}": "Traceback (most recent" in self.output,
            f"a terminal escape: {self.output[-500:]!r}": "\x1b" in self.output,
            f"no reason: {last!r}": self.status in (1, 2) and not last.startswith("error: "),
            "exit status 0, but not finished": self.status == 0 and summary(folder)["status"] != "finished",
        }
        return [what for what, is_wrong in wrong.items() if is_wrong]


def forked(function: Callable[[], int], seconds: float = _HANG_SECONDS) -> Ending:
    """Call a function in a fork of this process; its result is the exit status. After these seconds, it hangs."""
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 2**20)  # it is read in the end

    def call() -> int:
        os.setpgrp()
        for standard in (1, 2):
            os.dup2(writer, standard)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        faulthandler.register(signal.SIGQUIT, file=writer)
        sys.dont_write_bytecode = True  # where files end at a size, it would cut modules: full_disk.py
        try:
            status = function()
            for stream in filter(None, (sys.__stdout__, sys.__stderr__)):
                stream.flush()
        finally:
            for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS):  # the function may have lowered them
                resource.setrlimit(limit, (resource.getrlimit(limit)[1],) * 2)
            kill(descendants(os.getpid()))
        return status

    status = _wait(fork(call), seconds)
    os.close(writer)
    os.set_blocking(reader, False)  # processes that the fork has started may still hold the pipe
    with os.fdopen(reader, "rb") as output:
        return Ending(status, (output.read() or b"").decode(errors="replace"))


def _wait(pid: int, seconds: float) -> int | None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline + _waited_for_processor(pid):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGQUIT)  # prints the stacks
    time.sleep(1)
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _waited_for_processor(pid: int) -> float:
    """Return how many seconds a process could have computed, but others had the processors."""
    return float(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9


def attack(
    folder: Path,
    whole: Path,
    spoil: Callable[[Path], object],
    moment: int,
    restore: Callable[[Path], object] = lambda folder: None,
    statuses: Collection[int | None] = (0, 1, 2),
    words: Sequence[str] = (),
) -> list[str]:
    """Train in a fork of this process, and start again.

    Args:
        spoil: spoils the environment of the first start before update `moment`; 0 is before the command.
        restore: makes the environment good again.
        statuses: the exit statuses that the first start may have.

    Returns:
        What is wrong with how the first start ended, or with the second, which must end like `whole`.
    """

    def command() -> int:
        spoil(folder)
        return cli.main(["train", f"hydra.run.dir={folder}", *TINY, *words])

    def spoiled() -> int:
        _before_update(moment, lambda: spoil(folder))
        return train()

    def train() -> int:
        folder.mkdir(parents=True, exist_ok=True)
        with standard_streams():
            return report(execute(tiny_job(folder, *words)))

    first = forked(spoiled if moment else command)
    restore(folder)
    if problems := first.problems(folder, statuses):
        return problems
    again = forked(train)
    if again.status != 0:
        return [f"the second start ended with {again.status}: {again.output[-3000:]}"]
    last = f"checkpoints/{(whole / 'checkpoints' / 'last').readlink()}"
    # What could not be written of the rest, such as histograms, the manifest does not count.
    results = (f"{last}/model", f"{last}/ema", f"{last}/training", "checkpoints/last", "metrics.jsonl",
               "summary.json")  # fmt: skip
    return [f"{file} differs" for file in differing(folder, whole) if file.startswith(results)]


def _before_update(moment: int, function: Callable[[], object]) -> None:
    """Call a function before an update of the run that this process makes."""
    make_update = loop.make_update

    def spoiled(trainer: loop.Trainer, *, measure: bool) -> Any:
        if trainer.state.num_updates + 1 == moment:
            function()
        return make_update(trainer, measure=measure)

    loop.make_update = spoiled


def enter_namespace(user: int = 0) -> None:
    """Give this process mounts of its own, and show it to itself as another user.

    Raises:
        OSError: this machine does not allow it.
    """
    uid, gid = os.getuid(), os.getgid()
    _check(_LIBC.unshare(_NEW_USER | _NEW_MOUNTS))
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{user} {gid} 1")
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)


def mount_small_disk(folder: Path, num_pages: int = 0, num_files: int = 0) -> None:
    """Mount a disk in memory on a folder, with this much room; 0 is unlimited."""
    _mount("tmpfs", str(folder), "tmpfs", 0, f"size={4 * num_pages}k,nr_inodes={num_files}")


def make_read_only(folder: Path) -> None:
    _mount(str(folder), str(folder), None, _BIND)
    _mount("none", str(folder), None, _REMOUNT | _BIND | _READ_ONLY)


def make_writable(folder: Path) -> None:
    _check(_LIBC.umount2(str(folder).encode(), 2))  # 2: also while a file in it is open


def _mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    _check(_LIBC.mount(*words, ctypes.c_ulong(flags), options.encode()))


def drop_capabilities() -> None:
    """Let the permissions of files apply to this process, also if it belongs to root."""
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    _check(_LIBC.capset(header, nothing))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
