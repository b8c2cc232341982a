"""Call a function in a process of its own, quickly: a fork of a server that has the slow imports behind it.

What a run leaves behind in its process (default dtypes, random state, compiled graphs, a tracker's session,
the frames of a failure) ends with that process, so the next run starts as if it were the first.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class ProcessDied(Exception):
    """The process ended without a result; `exit_code` is negative for a signal, as in `subprocess`."""

    def __init__(self, exit_code: int) -> None:
        how = f"signal {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exit status {exit_code}"
        super().__init__(f"the process ended by {how} without a result")
        self.exit_code = exit_code


def call_isolated(function: Callable[..., T], arguments: tuple[Any, ...], preload: Sequence[str]) -> T:
    """`function(*arguments)` in a fresh process, all picklable; its standard streams and environment are ours.

    Every SIGINT and SIGTERM that arrives meanwhile is passed on, and the result is still waited for.
    The process stops as by SIGTERM when this one dies.

    Args:
        preload: modules that the server imports before it forks; only the first call's count.

    Raises:
        ProcessDied: it ended without a result.
        SystemExit: it did so because of a signal that was passed on; the code is 128 + the signal.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, dict(os.environ), function, arguments))
    process.start()
    sender.close()
    with _forwarding(process.pid or 0) as forwarded:
        try:
            result = receiver.recv()
        except EOFError:
            process.join()
            if forwarded.signum is not None:  # it was asked to stop before it could note the request
                raise SystemExit(128 + forwarded.signum) from None
            raise ProcessDied(process.exitcode or 0) from None
        process.join()
    return result


class _forwarding:
    """While it lasts, signals go to `pid` instead of interrupting this process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before: dict[int, Any] = {}
        self.signum: int | None = None  # the last one passed on

    def __enter__(self) -> _forwarding:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._pass_on) for s in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _pass_on(self, signum: int, frame: FrameType | None) -> None:
        del frame
        self.signum = signum
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(self._pid, signum)


def _answer(
    sender: Connection, environment: dict[str, str], function: Callable[..., T], arguments: tuple[Any, ...]
) -> None:
    os.setpgrp()  # Ctrl-C in the terminal reaches the parent alone, which passes it on
    os.environ.clear()
    os.environ.update(environment)  # the server keeps that of its first call
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    sender.send(function(*arguments))
    sender.close()
    sys.stdout.flush()


def _stop_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
