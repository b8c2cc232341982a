"""Trackers in a process of their own, so that the import and the threads of their library take no time from the run.

The run's process, the client, writes calls to the standard input of the other one and waits for each answer. What is
logged there is logged here, before the call returns. When the client ends without a word, the other process ends
within a second, as if it had been killed with it.
"""

import contextlib
import itertools
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any, NoReturn

from hydrant.errors import HydrantError, log, typed_line
from hydrant.signals import STOP_SIGNALS
from hydrant.trackers.base import Histogram, RunIdentity, Tracker

_CLOSE_SECONDS = 10.0
"""How long the client waits for the end of the other process, which has ended its runs before."""

_PATIENCE_SECONDS = 120.0
"""A tracker that takes longer to answer is named, because the run waits for it. W&B's own limits are shorter."""


@dataclass
class _Answer:
    """What a call raised and logged, and how the tracker describes itself afterwards."""

    call: int
    error: Exception | None
    records: Sequence[logging.LogRecord]
    description: Mapping[str, Any]


class ProcessEndedError(Exception):
    """The tracker process has ended before the trackers."""


class TrackerProcess:
    """The other process, as the client sees it. All trackers of the client share one."""

    def __init__(self) -> None:
        path = [*map(str, sys.path)]  # users add paths of other types
        code = f"import sys; sys.path[:] = {path!r}; from {__name__} import serve; serve({os.getpid()})"
        # In a session of its own: Ctrl-C is for the run, which then ends its trackers.
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._calls, self._answers = self._process.stdin, self._process.stdout
        self._waiting = dict[int, Future[_Answer]]()  # by the number of the call
        self._lock = threading.Lock()
        self._has_ended, self._reason = False, ""
        self.num_users = 0
        self._thread = threading.Thread(target=self._receive, name="hydrant-trackers", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send(self, method: str, number: int, *arguments: Any) -> Future[_Answer]:
        """Let the process call a method of its `_Server`. If it has ended, the answer raises a ProcessEndedError."""
        call, answer = next(_numbers), Future[_Answer]()
        message = pickle.dumps((call, method, number, pickle.dumps(arguments)))
        with self._lock:
            self._waiting[call] = answer
            if self._has_ended:
                self._refuse()
                return answer
            with contextlib.suppress(OSError):  # it is ending, which `_receive` notices
                self._calls.write(message)
                self._calls.flush()
        return answer

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """End the process."""
        self.send("close", 0)
        try:
            self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            log.debug("the process of the trackers did not end within %g s and was killed", _CLOSE_SECONDS)
            self._process.kill()
            self._process.wait()
        self._thread.join()
        for stream in (self._calls, self._answers):
            with contextlib.suppress(OSError):  # what a dead process has not read
                stream.close()

    def _receive(self) -> None:
        """Pass on the answers."""
        try:
            while True:
                answer = pickle.load(self._answers)
                self._waiting.pop(answer.call).set_result(answer)
        except (EOFError, OSError):
            self._reason = "its process has ended"
        except Exception as error:  # what was logged there may not travel
            self._reason = f"an answer of its process cannot be read ({typed_line(error)})"
            self._process.kill()
        with self._lock:
            self._has_ended = True
            self._refuse()

    def _refuse(self) -> None:
        while self._waiting:
            self._waiting.popitem()[1].set_exception(ProcessEndedError(self._reason))


_numbers = itertools.count(1)
"""Of the trackers and the calls."""

_shared: list[TrackerProcess] = []
"""The process of the open trackers, if there are any."""


@contextlib.contextmanager
def tracker_process() -> Generator[TrackerProcess]:
    """Use the process that the trackers share. It starts with the first block and ends with the last one."""
    if not (_shared and _shared[0].is_alive):
        _shared[:] = [TrackerProcess()]
    process = _shared[0]
    process.num_users += 1
    try:
        yield process
    except Exception:
        raise
    except BaseException:  # Ctrl-C waits for no answer
        process.kill()
        raise
    finally:
        process.num_users -= 1
        if not process.num_users:
            if process in _shared:
                _shared.remove(process)
            process.close()


class RemoteTracker(Tracker):
    """A tracker that lives in the tracker process: it receives what this one receives.

    Args:
        build: the tracker's class with its settings. Both travel to the other process.

    Raises:
        ProcessEndedError: the process has ended before the tracker has started. Later, one warning tells it.
        OSError: no process can be started.
    """

    def __init__(self, build: partial[Tracker], identity: RunIdentity, num_updates: int) -> None:
        self._description: Mapping[str, Any] = {}
        self._number, self._is_lost = next(_numbers), False
        self._name: str = build.func.__name__
        # Only plain types travel: Hydra's partial and the history would import Hydra and torch there.
        build = partial(build.func, *build.args, **build.keywords)
        identity = replace(identity, history=partial(tuple, identity.history() if num_updates else ()))
        with contextlib.ExitStack() as failed:
            self._process = failed.enter_context(tracker_process())
            self._call("start", Path.cwd(), build, identity, num_updates)
            self._open = failed.pop_all()

    def log(self, row: Mapping[str, float]) -> None:
        self._track("log", row)

    def image(self, key: str, path: Path) -> None:
        self._track("image", key, path)

    def text(self, key: str, text: str) -> None:
        self._track("text", key, text)

    def table(self, key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        self._track("table", key, columns, rows)

    def histograms(self, num_updates: int, histograms: Mapping[str, Histogram]) -> None:
        self._track("histograms", num_updates, histograms)

    def file(self, path: Path) -> None:
        self._track("file", path)

    def checkpoint(self, path: Path) -> None:
        self._track("checkpoint", path)

    def finish(self, exit_status: int, summary: Mapping[str, Any]) -> None:
        with self._open:
            # As in summary.json: torch's type of its version would import torch there.
            self._track("finish", exit_status, json.loads(json.dumps(summary)))

    def describe(self) -> Mapping[str, Any]:
        return self._description

    def _track(self, method: str, *arguments: Any) -> None:
        if self._is_lost:
            return
        try:
            self._call("track", method, arguments)
        except ProcessEndedError as error:
            self._is_lost = True
            self._description = {**self._description, "mode": "failed"}
            log.warning("tracker: %s; training continues, and metrics.jsonl has the numbers", error)
        except Exception:  # of the tracker, which gets nothing more
            self._open.close()
            raise

    def _answer(self, call: Future[_Answer]) -> _Answer:
        try:
            return call.result(_PATIENCE_SECONDS)
        except TimeoutError:
            log.warning("%s: no answer for %g s; the run waits for it", self._name, _PATIENCE_SECONDS)
            return call.result()

    def _call(self, method: str, *arguments: Any) -> None:
        try:
            answer = self._answer(self._process.send(method, self._number, *arguments))
        except KeyboardInterrupt:  # stops at once
            self._process.kill()
            raise
        self._description = answer.description
        for record in answer.records:
            if log.isEnabledFor(record.levelno):
                log.handle(record)
        if answer.error is not None:
            raise answer.error


class _Server:
    """The trackers of the tracker process, by number."""

    def __init__(self) -> None:
        self._trackers = dict[int, Tracker]()
        self._warm = contextlib.ExitStack()
        self._logged = SimpleQueue[logging.LogRecord]()
        log.addHandler(QueueHandler(self._logged))
        log.setLevel(logging.DEBUG)
        log.propagate = False

    def answer(self, call: int, method: str, number: int, arguments: bytes) -> _Answer:
        error: Exception | None = None
        try:
            getattr(self, method)(number, *pickle.loads(arguments))
        except HydrantError as raised:
            error = raised
        except (Exception, SystemExit) as raised:  # a class of a library may not travel
            error = RuntimeError(typed_line(raised))
        records = [self._logged.get() for _ in range(self._logged.qsize())]
        return _Answer(call, error, records, dict(self._trackers.get(number, Tracker()).describe()))

    def warm(self, number: int, cwd: Path, kind: type[Tracker], settings: Mapping[str, Any]) -> None:
        os.chdir(cwd)
        self._warm.enter_context(kind.warmed_up(settings))

    def start(
        self, number: int, cwd: Path, build: partial[Tracker], identity: RunIdentity, num_updates: int
    ) -> None:
        os.chdir(cwd)
        with self._warm:
            self._trackers[number] = build(identity, num_updates)

    def track(self, number: int, method: str, arguments: Sequence[Any]) -> None:
        getattr(self._trackers[number], method)(*arguments)

    def close(self, number: int) -> None:
        self._warm.close()


def serve(client: int) -> None:
    """Be the tracker process of a client: answer its calls until it closes this process, and end when it is gone."""
    for signum in STOP_SIGNALS:
        signal.signal(signum, _ignore)  # the client ends its trackers when it stops
    threading.Thread(target=_end_with, args=[client], daemon=True).start()
    calls, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what a library prints must not come between the answers
    server, method = _Server(), ""
    while method != "close":
        try:
            call, method, number, arguments = pickle.load(calls)
            pickle.dump(server.answer(call, method, number, arguments), answers)
            answers.flush()
        except (EOFError, OSError):
            _end()


def _ignore(signum: int, frame: FrameType | None) -> None: ...


def _end_with(client: int) -> None:
    """End this process when the client is gone, also in a call, and while data workers of the client hold its pipe."""
    while os.getppid() == client:
        time.sleep(0.5)
    _end()


def _end() -> NoReturn:
    os._exit(1)  # without the exit hooks of libraries, which would end the runs as if they were complete
