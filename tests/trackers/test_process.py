"""A tracker in a process of its own receives what one in the run's process does, and ends as the run ends."""

from __future__ import annotations

import importlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from processes import descendants, wait_until_gone
from training_runs import UserModule

from hydrant.config.groups import conf_dir
from hydrant.errors import ConfigError
from hydrant.trackers import process
from hydrant.trackers.base import Histogram, RunIdentity, Tracker
from hydrant.trackers.process import ProcessEndedError, RemoteTracker, tracker_process
from hydrant.trackers.several import Trackers, trackers_warmed_up
from hydrant.trackers.wandb import GRACE_SECONDS

DIARY = '''
import contextlib, json, os, pathlib, sys, time

from hydrant.errors import ConfigError, log
from hydrant.terminal.console import log_fields
from hydrant.trackers import NullTracker


class LibraryError(Exception):
    def __init__(self, code, *, text):
        super().__init__(f"{code}: {text}")


if "serve" in " ".join(sys.orig_argv):
    class Elsewhere:
        pass


class Diary(NullTracker):
    """Writes each call with the number of its process, and logs it."""

    library = "a_module_that_nobody_imports"
    of_the_run = ("is_here",)

    def __init__(self, identity, num_updates, file="diary.jsonl", fails="", is_here=False):
        self.path, self.fails = pathlib.Path(file).resolve(), fails
        self.write("init", identity.name, num_updates, list(identity.history()))

    @classmethod
    @contextlib.contextmanager
    def warmed_up(cls, settings):
        pathlib.Path(settings.get("file", "diary.jsonl")).with_suffix(".warm").write_text(str(os.getpid()))
        yield

    def write(self, *call):
        if call[0] == self.fails == "init":
            raise ConfigError("tracker.file", "not this one", remedy="take another")
        if call[0] == "log" and self.fails == "exit":
            sys.exit(3)
        if call[0] == "log" and self.fails == "hang":
            time.sleep(600)
        if call[0] == self.fails == "log":
            raise LibraryError(3, text="not today")
        with self.path.open("a") as file:
            file.write(json.dumps([os.getpid(), *call], default=repr) + "\\n")
        log.warning("wrote %s", call[0])
        log_fields({"diary": call[0]})

    def describe(self):
        if self.fails == "describe":
            return {"id": Elsewhere()}
        return {"id": "diary", "mode": "online", "length": len(self.path.read_text().splitlines())}


for name in ("log", "image", "text", "table", "histograms", "file", "checkpoint", "finish"):
    setattr(Diary, name, lambda self, *call, name=name: self.write(name, *call))


class Own(Diary):
    pass
'''
ROW = {"num_updates": 1.0, "train/loss": float("nan")}


def call_all(tracker: Tracker) -> None:
    tracker.log(ROW)
    tracker.image("schedule", Path("schedule.png"))
    tracker.text("samples/first", "to be\nor not")
    tracker.table("layers", ["name", "size"], [["fc", 10]])
    tracker.histograms(2, {"fc": Histogram(0.0, 1.0, (3, 1), 1.2, 0.9)})
    tracker.file(Path("trace.json"))
    tracker.checkpoint(Path("update_00000001"))
    tracker.finish(130, {"status": "stopped", "best": None})


def diary(file: str = "diary.jsonl") -> list[list[Any]]:
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


@pytest.fixture
def make_diary(user_module: UserModule) -> Iterator[Callable[..., partial[Any]]]:
    """`make_diary(**settings)`: the class of a tracker, with its settings, from a file of the user."""
    user_module("diary_tracker", DIARY)
    sys.modules.pop("diary_tracker", None)
    module = importlib.import_module("diary_tracker")
    yield lambda **settings: partial(module.Diary, **settings)
    assert not tracker_pids(), "no process is left"


def tracker_pids() -> list[int]:
    return [
        pid
        for pid in descendants(os.getpid())
        if b"trackers.process" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def config(**settings: Any) -> dict[str, Any]:
    name = settings.pop("name", "Diary")
    node = {"_target_": f"diary_tracker.{name}", "_partial_": True, **settings}
    return {"tracker": node, "trackers": {}}


def test_it_receives_what_a_tracker_in_this_process_does(
    make_diary: Callable[..., partial[Any]], identity: RunIdentity, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="hydrant")
    call_all(make_diary(file="here.jsonl")(identity, 0))
    expected = [(r.levelno, r.getMessage(), getattr(r, "field", None)) for r in caplog.records]
    remote = RemoteTracker(make_diary(file="there.jsonl"), identity, 0)
    assert remote.describe() == {"id": "diary", "mode": "online", "length": 1}
    call_all(remote)
    assert remote.describe()["length"] == 9
    here, there = diary("here.jsonl"), diary("there.jsonl")
    assert [call[1:] for call in there] == [call[1:] for call in here]
    assert {call[0] for call in here} == {os.getpid()}
    assert {call[0] for call in there}.isdisjoint({os.getpid()})
    logged = [(r.levelno, r.getMessage(), getattr(r, "field", None)) for r in caplog.records]
    assert logged == expected * 2


def test_a_run_that_continues_sends_its_rows(
    make_diary: Callable[..., partial[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [tmp_path, *sys.path])  # a Path, as some users write it
    identity = RunIdentity(tmp_path, "a", "", "", (), history=lambda: [{"num_updates": 1.0}])
    remote = RemoteTracker(make_diary(), identity, 7)
    remote.finish(0, {})
    assert diary()[0][2:] == ["a", 7, [{"num_updates": 1.0}]]


@pytest.mark.usefixtures("make_diary")
def test_trackers_share_the_process_that_the_run_has_warmed_up(identity: RunIdentity) -> None:
    with trackers_warmed_up(config()):
        first = Trackers(config(), identity, 0)
        second = Trackers(config(file="second.jsonl"), identity, 0)
    first.finish(0, {})
    second.log(ROW)
    second.finish(0, {})
    pids = {call[0] for call in [*diary(), *diary("second.jsonl")]} | {int(Path("diary.warm").read_text())}
    assert len(pids) == 1
    assert os.getpid() not in pids


@pytest.mark.usefixtures("make_diary")
def test_a_run_that_is_refused_ends_the_process() -> None:
    with trackers_warmed_up(config()):
        deadline = time.monotonic() + 60
        while not tracker_pids():  # Linux shows the new command line a moment after Popen returns
            assert time.monotonic() < deadline
    assert not tracker_pids()


@pytest.mark.usefixtures("make_diary")
@pytest.mark.parametrize("case", ["subclass", "imported", "setting", "no process"])
def test_it_stays_here_if_that_costs_nothing_or_its_code_may_need_it(
    case: str, identity: RunIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case == "imported":
        monkeypatch.setitem(sys.modules, "a_module_that_nobody_imports", logging)
    if case == "no process":
        monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    node = config(name="Own" if case == "subclass" else "Diary", is_here=case == "setting")
    with trackers_warmed_up(node):
        call_all(Trackers(node, identity, 0))  # pyright: ignore[reportArgumentType]
    assert {call[0] for call in diary()} == {os.getpid()}


@pytest.mark.usefixtures("make_diary")
def test_its_errors_come_here(identity: RunIdentity, logged_warnings: Callable[[], list[str]]) -> None:
    with pytest.raises(ConfigError) as raised:
        Trackers(config(fails="init"), identity, 0)
    assert str(raised.value) == "tracker.file: not this one; take another"
    assert not tracker_pids()
    for fails, text in {"log": "LibraryError: 3: not today", "exit": "SystemExit: 3"}.items():
        trackers = Trackers(config(fails=fails), identity, 0)
        trackers.log(ROW)
        trackers.finish(0, {})
        expected = f"tracker: RuntimeError: {text}; it gets nothing more"
        assert [warning for warning in logged_warnings() if warning.startswith(expected)]


@pytest.mark.usefixtures("make_diary")
def test_an_answer_that_cannot_be_read_ends_the_process(
    identity: RunIdentity, logged_warnings: Callable[[], list[str]]
) -> None:
    Trackers(config(fails="describe"), identity, 0).finish(0, {})
    (warning,) = logged_warnings()
    assert warning.startswith(
        "tracker: ProcessEndedError: an answer of its process cannot be read (AttributeError"
    )


class OnlyHere:
    """Objects that the tracker process cannot read: it has no such module."""


def test_a_call_that_cannot_be_read_fails_as_a_call(
    make_diary: Callable[..., partial[Any]], identity: RunIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OnlyHere, "__module__", "only_here")
    monkeypatch.setitem(sys.modules, "only_here", sys.modules[__name__])
    first, second = (RemoteTracker(make_diary(file=file), identity, 0) for file in ("1.jsonl", "2.jsonl"))
    with pytest.raises(RuntimeError, match="ModuleNotFoundError: No module named 'only_here'"):
        first.text("key", OnlyHere())  # type: ignore[arg-type]
    second.text("key", "text")
    second.finish(0, {})
    assert [call for _, call, *_ in diary("2.jsonl")] == ["init", "text", "finish"]


def test_a_tracker_that_hangs_is_named(
    make_diary: Callable[..., partial[Any]],
    identity: RunIdentity,
    logged_warnings: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remote = RemoteTracker(make_diary(), identity, 0)
    monkeypatch.setattr(process, "_PATIENCE_SECONDS", 0.2)
    (pid,) = tracker_pids()
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(1.0, os.kill, (pid, signal.SIGCONT)).start()
    remote.text("key", "text")
    assert logged_warnings()[-2:] == ["Diary: no answer for 0.2 s; the run waits for it", "wrote text"]
    remote.finish(0, {})


def test_wandb_tells_first_that_its_upload_takes_too_long() -> None:
    finish_timeout = yaml.safe_load((conf_dir() / "tracker" / "wandb.yaml").read_text())["finish_timeout"]
    assert finish_timeout + 2 * GRACE_SECONDS < process._PATIENCE_SECONDS  # pyright: ignore[reportPrivateUsage]


def test_after_ctrl_c_in_a_call_nothing_waits_for_it(
    make_diary: Callable[..., partial[Any]], identity: RunIdentity
) -> None:
    remote = RemoteTracker(make_diary(fails="hang"), identity, 0)
    threading.Timer(0.5, os.kill, [os.getpid(), signal.SIGINT]).start()
    with pytest.raises(KeyboardInterrupt):
        remote.log(ROW)
    call_all(remote)
    assert len(diary()) == 1


def test_a_process_that_is_killed_costs_the_run_nothing(
    make_diary: Callable[..., partial[Any]], identity: RunIdentity, logged_warnings: Callable[[], list[str]]
) -> None:
    remote = RemoteTracker(make_diary(), identity, 0)
    os.kill(diary()[0][0], signal.SIGKILL)
    call_all(remote)
    warning = "tracker: its process has ended; training continues, and metrics.jsonl has the numbers"
    assert [text for text in logged_warnings() if "ended" in text] == [warning]
    assert remote.describe() == {"id": "diary", "mode": "failed", "length": 1}
    later = RemoteTracker(make_diary(file="later.jsonl"), identity, 0)
    call_all(later)
    assert len(diary("later.jsonl")) == 9


def test_a_process_that_ends_at_its_start_is_told(
    make_diary: Callable[..., partial[Any]], identity: RunIdentity, logged_warnings: Callable[[], list[str]]
) -> None:
    with tracker_process() as process:
        os.kill(tracker_pids()[0], signal.SIGKILL)
        with pytest.raises(ProcessEndedError):
            process.send("warm", 0).result()
    Trackers(config(), identity, 0).finish(0, {})
    assert not [text for text in logged_warnings() if "ended" in text]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_signals_are_for_the_run(
    signum: signal.Signals, make_diary: Callable[..., partial[Any]], identity: RunIdentity
) -> None:
    remote = RemoteTracker(make_diary(), identity, 0)
    os.kill(diary()[0][0], signum)
    call_all(remote)
    assert len(diary()) == 9


CLIENT = """
import pathlib, sys, time
from functools import partial
from diary_tracker import Diary
from hydrant.trackers.base import RunIdentity
from hydrant.trackers.process import RemoteTracker

remote = RemoteTracker(partial(Diary, fails=sys.argv[1]), RunIdentity(pathlib.Path(), "a", "", "", ()), 0)
print("started", flush=True)
remote.log({"num_updates": 1.0})
print("logged", flush=True)
time.sleep(600)
"""


@pytest.mark.usefixtures("make_diary")
@pytest.mark.parametrize(("fails", "calls"), [("", ["init", "log"]), ("hang", ["init"])])
def test_it_ends_with_a_run_that_is_killed_and_ends_no_tracker(fails: str, calls: list[str]) -> None:
    command = [sys.executable, "-c", CLIENT, fails]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
        assert client.stdout is not None
        assert client.stderr is not None
        assert [client.stdout.readline() for _ in calls] == ["started\n", "logged\n"][: len(calls)]
        client.kill()
        wait_until_gone([diary()[0][0]], 60)
        assert "Traceback" not in client.stderr.read()
    assert [call[1] for call in diary()] == calls


def test_a_run_leaves_the_import_of_wandb_to_it(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    words = ["train", "name=run", "duration=2", "data=digits", "model.hidden=[16]"]
    code = f"import sys; from hydrant import cli; print(cli.main({words}), 'wandb' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=workdir, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 False", done.stderr
    assert not done.stderr
    described = json.loads(Path(workdir, "outputs", "run", "summary.json").read_text())["wandb"]
    assert list(Path(workdir, "outputs", "run", described["path"]).glob("*.wandb"))
