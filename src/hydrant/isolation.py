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
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from types import FrameType, MappingProxyType
from typing import Any, Generic, TypeVar

from hydrant.signals import STOPPING, send, signal_name

T = TypeVar("T")

_WAKE_SECONDS = 0.5


class ProcessDied(Exception):
    """The process ended without a result; `exit_code` is negative for a signal, as in `subprocess`."""

    def __init__(self, exit_code: int) -> None:
        how = f"{signal_name(-exit_code)}" if exit_code < 0 else f"exit status {exit_code}"
        super().__init__(f"the process ended by {how} without a result")
        self.exit_code = exit_code


class Stopped(BaseException):
    """A signal asked to stop while a call was made; `exit_status` is 128 + the signal."""

    def __init__(self, exit_status: int) -> None:
        super().__init__(exit_status)
        self.exit_status = exit_status


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What a call gave, and the last signal that arrived meanwhile and was passed on to it."""

    result: T
    signum: int | None


def call_isolated(
    function: Callable[..., T],
    arguments: tuple[Any, ...],
    preload: Sequence[str],
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Answer[T | ProcessDied]:
    """`function(*arguments)` in a fresh process, all picklable; its standard streams and environment are ours.

    Every signal of `STOPPING` that arrives meanwhile is passed on, and the result is still waited for: ProcessDied if
    there is none. The process stops as by SIGTERM when this one dies. Threads may call at once, within `forwarding`.

    Args:
        preload: modules that the server imports before it forks; those of the call that starts it.
        environment: variables besides ours, or instead of them.
    """
    context = multiprocessing.get_context("forkserver")
    with forwarding() as signals:
        with _processes:
            _start_server(preload)
            receiver, sender = context.Pipe(duplex=False)
            variables = {**os.environ, **environment}
            process = context.Process(target=_answer, args=(sender, variables, function, arguments))
            if signals.signum is not None:
                return Answer(ProcessDied(-signals.signum), signals.signum)
            process.start()
            sender.close()
        with signals.reaching(process.pid or 0):
            box: list[T] = []
            while not receiver.poll(_WAKE_SECONDS):  # Ray's cancelling is heard only between two instructions
                pass
            with contextlib.suppress(EOFError):
                box.append(receiver.recv())
            wait([process.sentinel])
        with _processes:
            process.join()
        return Answer(box[0] if box else ProcessDied(process.exitcode or 0), signals.signum)


_processes = threading.Lock()
"""Held to start or to join a process: multiprocessing joins those of other threads too."""


def _start_server(preload: Sequence[str]) -> None:
    """A signal from the terminal would end the server in the middle of its imports: it does not hear it."""
    forkserver.set_forkserver_preload(["hydrant.server.begin", *preload, "hydrant.server.end"])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # that has unblocked some
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Forwarding:
    """While it lasts, signals go to the processes of the calls under way instead of interrupting this one.

    An interrupt is lost where Python hears no exceptions, as in the callbacks of an import.
    """

    def __init__(self) -> None:
        self._pids: set[int] = set()
        self._before: dict[int, Any] = {}
        self.signum: int | None = None  # the last one that arrived

    @contextlib.contextmanager
    def reaching(self, pid: int) -> Generator[None]:
        """While it lasts, a process is told too; what has arrived before is passed on now."""
        self._pids.add(pid)
        if self.signum is not None:
            send(self.signum, pid)
        try:
            yield
        finally:
            self._pids.remove(pid)

    def __enter__(self) -> Forwarding:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._pass_on) for s in STOPPING}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _pass_on(self, signum: int, frame: FrameType | None) -> None:
        del frame
        self.signum = signum
        for pid in tuple(self._pids):
            send(signum, pid)


_in_force: list[Forwarding] = []


@contextlib.contextmanager
def forwarding() -> Generator[Forwarding]:
    """The forwarding in force, or one that lasts as long as this."""
    if _in_force:
        yield _in_force[0]
        return
    with Forwarding() as signals:
        _in_force.append(signals)
        try:
            yield signals
        finally:
            _in_force.remove(signals)


def _answer(
    sender: Connection, environment: dict[str, str], function: Callable[..., T], arguments: tuple[Any, ...]
) -> None:
    os.setpgrp()  # Ctrl-C in the terminal reaches the parent alone, which passes it on
    os.environ.clear()
    os.environ.update(environment)  # the server keeps that of its first call
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        result = function(*arguments)
    except KeyboardInterrupt:  # before it could note the request
        sys.stdout.flush()
        os._exit(128 + signal.SIGINT)
    with contextlib.suppress(BrokenPipeError):  # nobody is left to hear it
        sender.send(result)
        sender.close()
        sys.stdout.flush()


def _stop_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
