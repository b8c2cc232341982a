"""A sender makes all calls in order, until one fails, and delays neither the caller nor the end of the process."""

import subprocess
import sys
import threading

import pytest

from hydrant.extensions.mlflow import Sender
from hydrant.trackers import NoAnswerError


def test_all_calls_are_made_in_order() -> None:
    made, may_begin = list[int](), threading.Event()
    sender = Sender()
    sender.send(may_begin.wait)
    for number in range(100):
        sender.send(made.append, number)
    assert made == []
    may_begin.set()
    sender.finish()
    assert made == list(range(100))


def fail() -> None:
    raise ConnectionError("lost")


def test_no_call_follows_one_that_fails_and_the_next_one_raises() -> None:
    made = list[int]()
    sender, has_failed = Sender(), threading.Event()
    sender.send(fail)
    sender.send(made.append, 1)
    with pytest.raises(ConnectionError, match="lost"):
        sender.finish()
    with pytest.raises(ConnectionError, match="lost"):
        sender.send(has_failed.set)
    assert made == []
    assert not has_failed.is_set()


@pytest.mark.slow
def test_the_end_waits_for_slow_calls_but_not_for_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydrant.extensions.mlflow._SILENT_SECONDS", 0.5)
    made = list[int]()
    slow = Sender()
    for number in range(8):
        slow.send(lambda n: (threading.Event().wait(0.1), made.append(n)), number)
    slow.finish()
    assert made == list(range(8))
    hanging = Sender()
    hanging.send(threading.Event().wait)
    with pytest.raises(NoAnswerError, match=r"no answer within 0\.5 s"):
        hanging.finish()


def test_a_call_that_hangs_does_not_delay_the_end_of_the_process() -> None:
    program = "import threading; from hydrant.extensions.mlflow import Sender\nSender().send(threading.Event().wait)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
