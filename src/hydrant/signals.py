"""Signals that ask a process to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
"""The signals after which a run saves and stops. SLURM sends one of them other than SIGINT before a job's time ends."""

_ORPHAN_SECONDS = 600  # in which an orphan may finish its update and save

_SAVING = "stopping when this update is saved; Ctrl-C again stops at once, without saving"


def signal_name(signum: int) -> str:
    """Return the name of a signal; real-time signals have none.

    >>> signal_name(15), signal_name(40)
    ('SIGTERM', 'signal 40')
    """
    names = {int(stop): stop.name for stop in signal.Signals}
    return names.get(signum, f"signal {signum}")


def killed_by(signum: int) -> str:
    """Return which signal killed a process, and the usual cause of SIGKILL.

    >>> killed_by(9)
    'SIGKILL, usually because the memory of the machine or of its container was full'
    """
    cause = ", usually because the memory of the machine or of its container was full"
    return signal_name(signum) + cause * (signum == signal.SIGKILL)


def send_signal(signum: int, pid: int) -> None:
    """Send a signal to a process that may already have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


class StopRequest:
    """A context that records `STOP_SIGNALS`. A SIGINT after any of them raises KeyboardInterrupt at once.

    Args:
        message: printed to stderr at the first SIGINT.
    """

    def __init__(self, message: str = _SAVING) -> None:
        self._message = message
        self.is_urgent = False  # a SIGINT came after another signal
        self._signum: int | None = None
        self._handlers: dict[int, Any] = {}  # to restore at the end

    def __call__(self) -> int | None:
        """Return the last signal that came, if any."""
        return self._signum

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {s: signal.signal(s, self._record) for s in STOP_SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)

    def _record(self, signum: int, frame: FrameType | None) -> None:
        del frame
        if signum == signal.SIGINT:
            if self._signum is not None:
                self.is_urgent = True
                raise KeyboardInterrupt
            with contextlib.suppress(OSError):  # with `2>&1 | tee`, Ctrl-C also ends tee and closes the pipe
                os.write(2, f"\n{self._message}\n".encode())  # `print` is not reentrant in a signal handler
        self._signum = signum


def ignore_stop_signals() -> None:
    """Ignore `STOP_SIGNALS` except SIGINT, for a rank that only has to report how it ended.

    When one rank fails, the launcher sends SIGTERM to all.
    """
    if threading.current_thread() is threading.main_thread():
        for signum in set(STOP_SIGNALS) - {signal.SIGINT}:
            signal.signal(signum, _do_nothing)


def _do_nothing(signum: int, frame: FrameType | None) -> None:
    """A handler that child processes do not inherit, unlike SIG_IGN."""


def stop_when_orphaned(parent: int) -> None:
    """Send this process SIGTERM when its parent ends, so that it saves, stops and unlocks the run folder.

    Ten minutes later, end it in any case.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_ORPHAN_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
