"""Fork processes, wait for runs in child processes, and find their processes."""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from multiprocessing import util
from pathlib import Path
from subprocess import Popen
from typing import Any, NoReturn

from documentation import forget_modules

LONG = ("tracker=local", "model.hidden=[16]", "duration=1000000", "log_every=20", "eval_every=4000",
        "save_every=4000")  # fmt: skip
"""Overrides of a run that lasts until it is stopped."""


def fork(function: Callable[[], int | None], output: Path | None = None) -> int:
    """Call a function in a fork of this process, which then ends and prints to a file, if given. Return its pid.

    Its exit status is what the function returns, 0 for None, or 70 after an exception. In no case does the fork return
    into the test: it would be a second pytest process. The fork collects no garbage of this process: a process group
    of an earlier test would wait there for its threads, which forks do not have.
    """
    return os.fork() or _end(function, output)


def _end(function: Callable[[], int | None], output: Path | None = None) -> NoReturn:
    gc.freeze()
    status = 70
    try:
        if output is not None:
            descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            sys.stdout, sys.stderr = open(1, "w", buffering=1), open(2, "w", buffering=1)  # noqa: SIM115
        status = function() or 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(status)


class Forked(Popen[Any]):
    """A process as `Popen` starts it, but if it is of Python, as a fork of this process, which has imported torch.

    Python imports Hydrant and Hydra anew there if a PYTHONPATH is among the variables.
    """

    def __init__(self, command: Any, *, env: Mapping[str, str] | None = None, **options: Any) -> None:
        if command[0] == sys.executable:
            run = partial(_run_python, [str(word) for word in command[1:]], dict(env or os.environ))
            options |= {"preexec_fn": partial(_end, run), "restore_signals": False}
        super().__init__(command, env=env, **options)


def _run_python(words: list[str], env: Mapping[str, str]) -> int:
    null = os.open(os.devnull, os.O_RDWR)
    # Not closed: what owns a file would later close another of its number.
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        os.dup2(null, max(int(name), 3))
    sys.stdin, sys.stdout, sys.stderr = (open(n, how, 1, closefd=False) for n, how in enumerate("rww"))  # noqa: SIM115
    _forget_exit_handlers()
    os.environ.clear()
    os.environ.update(env)
    if "PYTHONPATH" in env:
        sys.path[:0] = env["PYTHONPATH"].split(os.pathsep)
        for package in ("hydra", "hydra_plugins", "hydrant"):
            forget_modules(package)
    importlib.import_module("spawned").serve_forks_again()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    warnings.simplefilter("ignore")  # this process may have imported the module
    sys.argv = words[words[0] in ("-c", "-m") :]
    try:
        if words[0] == "-c":
            exec(words[1], {"__name__": "__main__"})
        else:
            {"-m": runpy.run_module}.get(words[0], runpy.run_path)(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def _forget_exit_handlers() -> None:
    """Forget what the parent does at its end. A fork that did it would remove a folder that W&B's SDK uses there."""
    atexit._clear()
    atexit.register(util._exit_function)
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]


def wait_for_fork(pid: int) -> int:
    """Return the exit status of a fork when it has ended, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def printed(*command: str | Path, **options: Any) -> str:
    """Run a command, which must succeed; return its stdout."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def modules_after(code: str) -> set[str]:
    """Return the modules that a process has imported after running this code."""
    *_, names = printed(sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)").splitlines()
    return set(names.split())


def wait_for_row(folder: Path, num_updates: int, process: Popen[Any]) -> None:
    """Wait until a run has written a row of `num_updates` or more."""
    file = folder / "metrics.jsonl"

    def is_written() -> bool:
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return bool(lines) and json.loads(lines[-1])["num_updates"] >= num_updates

    wait_for(is_written, process, seconds=240, poll_seconds=0.002)


def wait_for(
    condition: Callable[[], bool], process: Popen[Any], seconds: float = 180, poll_seconds: float = 0.02
) -> None:
    """Wait until a condition holds. Fail if the process ends before."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the process has ended"
        assert time.monotonic() < deadline
        time.sleep(poll_seconds)


def descendants(pid: int) -> Iterator[int]:
    """Yield the children of a process, their children, and so on."""
    for children in list(Path(f"/proc/{pid}/task").glob("*/children")):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended meanwhile
            for child in map(int, children.read_text().split()):
                yield child
                yield from descendants(child)


def command_line(pid: int) -> str:
    """Return the command line of a process; "" if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def is_alive(pid: int) -> bool:
    """Return whether a process runs. A zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until_gone(pids: list[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, [command_line(pid) for pid in pids if is_alive(pid)]
        time.sleep(0.1)
