"""Requests to stop that arrive as signals."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from types import FrameType
from typing import Any

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
"""What asks a run to save and stop. SLURM sends one of the last two, or the first, before it takes the machine."""

_ORPHAN_SECONDS = 600  # for one that nobody waits for any more, to end its update and to save

_SAVING = "stopping when this update is saved; Ctrl-C again stops at once, without saving"


def signal_name(signum: int) -> str:
    """
    >>> signal_name(15), signal_name(40)
    ('SIGTERM', 'signal 40')
    """
    known = {int(known): known.name for known in signal.Signals}
    return known.get(signum, f"signal {signum}")  # those for real time have no name


def send(signum: int, pid: int) -> None:
    """Send a signal to a process that may have just ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


class StopRequest:
    """Notes the signals of `STOPPING` while it lasts; a second SIGINT interrupts at once, as Python does.

    `told` is what the first SIGINT is answered.
    """

    def __init__(self, told: str = _SAVING) -> None:
        self._told = told
        self.is_urgent = False  # asked again
        self._signum: int | None = None
        self._before: dict[int, Any] = {}

    def __call__(self) -> int | None:
        """The signal that asked to stop, if one has."""
        return self._signum

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._note) for s in STOPPING}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        del frame
        if self._signum is not None and signum == signal.SIGINT:
            self.is_urgent = True
            raise KeyboardInterrupt
        if signum == signal.SIGINT and self._signum is None:  # `print` may be in the middle of something
            os.write(2, f"\n{self._told}\n".encode())
        self._signum = signum


def heed_only_sigint() -> None:
    """For a rank that has only to say how it ended: when one fails, whoever started them asks all to stop."""
    if threading.current_thread() is threading.main_thread():
        for signum in set(STOPPING) - {signal.SIGINT}:
            signal.signal(signum, _pass_over)


def _pass_over(signum: int, frame: FrameType | None) -> None:
    """Unlike SIG_IGN, this is not handed on to processes that are started meanwhile."""


def stop_with(parent: int) -> None:
    """When the process that started this one is gone, save and stop as by SIGTERM: else the run folder stays held.

    One that still does not end, or heeds no SIGTERM any more, has ten minutes.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_ORPHAN_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
