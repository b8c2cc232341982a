"""Signals that ask a process to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Generator
from types import FrameType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
"""The signals after which a run saves and stops. SLURM sends one of them other than SIGINT before a job's time ends."""

_ORPHAN_SECONDS = 600  # the time in which an orphan may finish its update and save
_START_SECONDS = 2.0
_TRAINING_SECONDS = 10.0
"""The time in which the main thread must handle a signal that stops at once. In training, it may be in a long
kernel."""
_REPEATED_SECONDS = 1.0
"""A signal that comes again in this time counts once: a launcher and a terminal may both have sent it."""

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


class Stopped(BaseException):
    """A signal ended a command, when its processes had stopped. `exit_status` is 128 + the signal."""

    def __init__(self, exit_status: int) -> None:
        super().__init__(exit_status)
        self.exit_status = exit_status


class StopRequest:
    """A context that records `STOP_SIGNALS`. A SIGINT after any of them raises KeyboardInterrupt at once.

    So does a signal that comes again, unless within a second: a launcher and a terminal may both send it. If the main
    thread does not react, because it waits in C code for another rank or a disk, for example, the process is ended.

    Args:
        message: printed to stderr at the first SIGINT.
    """

    def __init__(self, message: str = _SAVING) -> None:
        self._message = message
        self.is_urgent = False
        """Whether a second signal stops the process at once."""
        self._has_reacted = threading.Event()  # the main thread, to such a signal or by leaving the context
        self._signum: int | None = None
        self._handled = _Signals()
        self._noticed = _Signals()  # the main thread may not have handled them yet
        self._context = contextlib.ExitStack()

    def __call__(self) -> int | None:
        """Return the last signal that came, if any."""
        return self._signum

    @property
    def has_come(self) -> bool:
        """Whether a signal has come, also if the main thread is in C code and has not handled it yet."""
        return bool(self._handled) or bool(self._noticed)

    def __enter__(self) -> StopRequest:
        _requests.append(self)
        if threading.current_thread() is threading.main_thread():
            self._context.enter_context(_noticing_signals(self._notice))
            for signum in STOP_SIGNALS:
                self._context.callback(signal.signal, signum, signal.signal(signum, self._record))
        return self

    def __exit__(self, *_: object) -> None:
        self._has_reacted.set()
        self._context.close()
        _requests.remove(self)

    def _record(self, signum: int, frame: FrameType | None) -> None:
        del frame
        is_second, self._signum = self._handled.add(signum), signum
        if is_second:
            self.is_urgent = True
            self._has_reacted.set()
            raise KeyboardInterrupt
        if signum == signal.SIGINT:
            with contextlib.suppress(OSError):  # with `2>&1 | tee`, Ctrl-C also ends tee and closes the pipe
                os.write(2, f"\n{self._message}\n".encode())  # `print` is not reentrant in a signal handler

    def _notice(self, signum: int) -> None:
        if signum in STOP_SIGNALS and self._noticed.add(signum):
            _end_unless(self._has_reacted, _TRAINING_SECONDS, signum)


_requests: list[StopRequest] = []  # those that this process is in


class _Signals:
    """The signals that came."""

    def __init__(self) -> None:
        self._times: dict[int, float] = {}  # of the last of each

    def __bool__(self) -> bool:
        return bool(self._times)

    def add(self, signum: int) -> bool:
        """Add a signal; return whether it asks to stop at once: a SIGINT after another signal, or one that repeats."""
        now = time.monotonic()
        has_come = bool(self._times) if signum == signal.SIGINT else signum in self._times
        last, self._times[signum] = self._times.get(signum, now), now
        return has_come and (signum == signal.SIGINT or now - last > _REPEATED_SECONDS)


@contextlib.contextmanager
def interruptible() -> Generator[None]:
    """Let Ctrl-C end this process within seconds, also while the main thread waits in C code for other ranks."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_handled = threading.Event()

    def interrupt(signum: int, frame: FrameType | None) -> None:
        del signum, frame
        is_handled.set()
        raise KeyboardInterrupt

    def notice(signum: int) -> None:
        if signum == signal.SIGINT:
            _end_unless(is_handled, _START_SECONDS, signum)

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        with _noticing_signals(notice):
            yield
    finally:
        signal.signal(signal.SIGINT, previous)
        is_handled.set()


def urgent_text(signum: int) -> str:
    """Return the last line of a process that a signal ends at once."""
    return f"stopped by {signal_name(signum)}"


urgent_texts: list[Callable[[int], str]] = [urgent_text]
"""The last one is used; a command whose errors are JSON adds its own."""


def _end_unless(is_handled: threading.Event, seconds: float, signum: int) -> None:
    """End this process if the main thread does not handle a signal in time."""
    if not is_handled.wait(seconds):
        with contextlib.suppress(OSError):
            os.write(2, f"\n{urgent_texts[-1](signum)}\n".encode())
        os._exit(128 + signum)


_wakeup_descriptors: list[int] = []  # those that this module has set, the current one last


@contextlib.contextmanager
def _noticing_signals(notice: Callable[[int], None]) -> Generator[None]:
    """Call `notice` with each signal, in a thread.

    While the main thread is in C code, Python calls no handler, but writes the signal into its wakeup descriptor.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def watch() -> None:
        with os.fdopen(reader, "rb", buffering=0) as signals:
            while number := signals.read(1):
                notice(number[0])

    threading.Thread(target=watch, daemon=True).start()
    previous = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    _wakeup_descriptors.append(writer)
    try:
        yield
    finally:
        signal.set_wakeup_fd(previous)
        _wakeup_descriptors.pop()
        os.close(writer)


def _forget_wakeup() -> None:
    """Write the signals of a forked process into no pipe of its parent's."""
    if _wakeup_descriptors:
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_forget_wakeup)


@contextlib.contextmanager
def sigint_blocked() -> Generator[None]:
    """Start processes in this context that Ctrl-C does not reach. A SIGINT to this process is delivered after it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


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
        stop_this_process()
        time.sleep(_ORPHAN_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def stop_this_process() -> None:
    """Send this process SIGTERM, unless a signal has come before: it saves then, and a second one would end that."""
    if not any(request.has_come for request in _requests):
        os.kill(os.getpid(), signal.SIGTERM)
