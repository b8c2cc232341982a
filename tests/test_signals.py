"""A Ctrl-C that stops at once also ends a process whose main thread waits in C code, such as for another rank."""

import contextlib
import os
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from threading import get_ident
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from processes import fork

from hydrant import signals
from hydrant.signals import StopRequest, interruptible, stop_this_process


def wait_in_c(context: AbstractContextManager[object], before: Callable[[], None] = lambda: None) -> int:
    """Fork a process that waits inside a context for a rank that never comes; return its pid when it waits."""
    reader, writer = os.pipe()

    def wait() -> None:
        with context:
            before()
            os.write(writer, b".")
            dist.HashStore().wait(["never"], timedelta(seconds=100))

    pid = fork(wait)
    os.read(reader, 1)
    os.close(reader)
    os.close(writer)
    time.sleep(0.1)  # it has to enter the C code; too early, Python itself ends the wait
    return pid


def exit_status(pid: int, *, seconds: float = 30) -> int | None:
    """Return the exit status of a process; None if it still runs after some seconds. It is killed then."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_START_SECONDS", 0.2)
    monkeypatch.setattr(signals, "_TRAINING_SECONDS", 0.2)


def test_ctrl_c_ends_a_rank_that_waits_for_others_to_start() -> None:
    pid = wait_in_c(interruptible())
    os.kill(pid, signal.SIGINT)
    assert exit_status(pid) == 130


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_rank_that_waits_in_training(first: signal.Signals) -> None:
    pid = wait_in_c(StopRequest())
    os.kill(pid, first)
    time.sleep(0.1)  # two equal signals at once would be one
    os.kill(pid, signal.SIGINT)
    assert exit_status(pid) == 130


def test_a_repeated_sigterm_ends_a_process_that_waits_for_a_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_REPEATED_SECONDS", 0.1)
    pid = wait_in_c(StopRequest())
    for _ in range(2):
        os.kill(pid, signal.SIGTERM)
        time.sleep(0.3)
    assert exit_status(pid) == 143


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGUSR1])
def test_what_comes_twice_at_once_or_is_another_signal_ends_nothing(second: signal.Signals) -> None:
    """A launcher and its process group may both send SIGTERM; SLURM sends one before the other."""
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(second)
        assert (stop(), stop.is_urgent) == (second, False)


def test_a_signal_that_is_sent_on_and_on_is_one_signal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep sends it to jobs of submitit until they end, because submitit ignores signals while it starts."""
    times, this_thread = iter([0.0, 0.6, 1.2, 1.8, 2.4, 3.5]), get_ident()  # those of other tests read it too
    clock = lambda: next(times) if get_ident() == this_thread else time.monotonic()  # noqa: E731
    monkeypatch.setattr(signals, "time", SimpleNamespace(monotonic=clock, sleep=time.sleep))
    came = signals._Signals()
    assert [came.add(signal.SIGTERM) for _ in range(6)] == [False] * 5 + [True]


def test_an_orphan_that_saves_already_is_not_stopped_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_REPEATED_SECONDS", 0.0)
    with StopRequest() as stop:
        for _ in range(2):
            stop_this_process()
            assert (stop(), stop.is_urgent) == (signal.SIGTERM, False)


def test_one_signal_does_not_end_a_rank_that_waits_in_training() -> None:
    pid = wait_in_c(StopRequest())
    os.kill(pid, signal.SIGINT)
    assert exit_status(pid, seconds=0.5) is None


def test_signals_of_a_forked_process_do_not_count() -> None:
    """Ctrl-C in the terminal reaches the run and each process that it has forked."""

    def interrupt() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    pid = wait_in_c(StopRequest(), lambda: os.waitpid(fork(interrupt), 0))
    os.kill(pid, signal.SIGINT)
    assert exit_status(pid, seconds=0.5) is None


@pytest.mark.slow
def test_two_signals_that_come_as_one_end_no_process_that_has_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the main thread is in C code, Python makes one of both: the run stops after its update, as after one."""
    monkeypatch.setattr(signals, "_TRAINING_SECONDS", 1.0)
    reader, writer = os.pipe()

    def wait() -> int | None:
        with StopRequest() as stop, contextlib.suppress(dist.DistStoreError):
            os.write(writer, b".")
            dist.HashStore().wait(["never"], timedelta(seconds=0.7))
        time.sleep(0.8)
        return stop()

    pid = fork(wait)
    os.read(reader, 1)
    for _ in range(2):
        time.sleep(0.1)
        os.kill(pid, signal.SIGINT)
    assert exit_status(pid) == signal.SIGINT


def test_a_handled_signal_ends_nothing() -> None:
    """The main thread may still save for minutes, and everything is restored at the end."""
    before = signal.getsignal(signal.SIGINT), signal.set_wakeup_fd(-1)
    with contextlib.suppress(KeyboardInterrupt), interruptible():
        signal.raise_signal(signal.SIGINT)
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGINT)
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        time.sleep(0.5)
        assert (stop(), stop.is_urgent) == (signal.SIGINT, True)
    assert (signal.getsignal(signal.SIGINT), signal.set_wakeup_fd(-1)) == before
