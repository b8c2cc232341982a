"""Without W&B, from the start or later, a run logs one warning and loses no row. With the real SDK."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from marks import slow
from wandb_rows import (
    SUMMARY,
    Make,
    Warnings,
    kill_core,
    local_rows,
    log_rows,
    rows,
    wait_for_local_rows,
    without_sdk_keys,
)  # fmt: skip
from wandb_server import WandbServer

from hydrant.trackers import RunIdentity

Situation = Callable[[WandbServer, pytest.MonkeyPatch], None]
SHORT_PROBE = {"probe_timeout": 0.5}
"""For a server that never answers."""


def no_key(server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY")


def malformed_key(server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "too-short")


def refused(server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")


def name_resolution_hangs(server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://wandb.invalid")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(60))


def init_fails(server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydrant.extensions.wandb.sdk.access_problem", lambda timeout: None)
    server.chaos("500")


def answering(mode: str) -> Situation:
    return lambda server, monkeypatch: server.chaos(mode)


@pytest.mark.parametrize(
    ("situation", "limits", "words"),
    [
        pytest.param(no_key, {"mode": "online"}, "no API key", id="no key"),
        pytest.param(malformed_key, {}, "API key must have", id="malformed key"),
        pytest.param(refused, {}, "cannot be reached", id="refused"),
        pytest.param(name_resolution_hangs, SHORT_PROBE, "cannot be reached", id="name resolution hangs"),
        pytest.param(answering("hang"), SHORT_PROBE, "cannot be reached", id="hang"),
        pytest.param(answering("reset"), {}, "cannot be reached", id="reset"),
        pytest.param(answering("500"), {}, "HTTP 500", id="500"),
        *slow(*(pytest.param(answering(s), {}, f"HTTP {s}", id=s) for s in ("401", "403", "404", "429"))),
        *slow(pytest.param(init_fails, {"init_timeout": 10.0}, "", id="start fails after the probe")),
    ],
)
def test_without_wandb_a_run_is_offline(
    situation: Situation, limits: dict[str, float], words: str, identity: RunIdentity, wandb_server: WandbServer,
    make_wandb: Make, monkeypatch: pytest.MonkeyPatch, logged_warnings: Warnings,
) -> None:  # fmt: skip
    situation(wandb_server, monkeypatch)
    began = time.monotonic()
    tracker = make_wandb(identity, **limits)
    assert time.monotonic() - began < 40  # without time limits, what hangs takes 60 s or more
    log_rows(tracker)
    tracker.finish(0, SUMMARY)

    description = tracker.describe()
    assert description["mode"] == "offline"
    folder = identity.folder / description["path"]
    (warning,) = logged_warnings()
    assert words in warning
    assert warning.endswith(f"logging offline. Upload later with: hydrant sync {identity.folder}")
    wait_for_local_rows(folder, rows())
    assert wandb_server.runs == {}


def test_a_run_without_a_key_is_kept_offline_and_says_so_at_its_end(
    identity: RunIdentity, make_wandb: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Without a warning: somebody who has no key has most likely not asked for W&B."""
    for variable in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "files"))
    caplog.set_level("INFO", logger="hydrant")
    tracker = make_wandb(identity, mode="auto")
    log_rows(tracker)
    tracker.finish(0, SUMMARY)
    # The SDK logs too, once another test has used it.
    (line,) = [record.getMessage() for record in caplog.records if record.name == "hydrant"]
    command = f"WANDB_DIR={tmp_path / 'files'} hydrant sync {identity.folder}"
    assert line.split() == f"W&B kept offline; `{command}` sends it, tracker=local leaves it out".split()
    wait_for_local_rows(identity.folder / tracker.describe()["path"], rows())


@pytest.mark.usefixtures("reap")
def test_training_survives_the_death_of_wandb_core(
    identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make, logged_warnings: Warnings, tmp_path: Path,
) -> None:  # fmt: skip
    tracker = make_wandb(identity)
    log_rows(tracker, 0, 2)
    (folder,) = (identity.folder / "wandb").glob("run-*")
    wait_for_local_rows(folder, rows(0, 2))
    kill_core(signal.SIGKILL)
    for row in rows(2, 3000):
        tracker.log(row)
        if tracker.describe()["mode"] == "failed":
            break
        time.sleep(0.01)  # until a thread of the SDK has seen that the connection is closed
    tracker.finish(0, SUMMARY)

    assert tracker.describe()["mode"] == "failed"
    (warning,) = logged_warnings()
    assert "logging stopped" in warning
    assert warning.endswith(f"wandb sync --include-online {folder}")
    assert local_rows(folder) == rows(0, 2)

    next_run = make_wandb(replace(identity, folder=tmp_path / "after"))
    log_rows(next_run)
    next_run.finish(0, {})
    assert next_run.describe()["mode"] == "online"


@pytest.mark.slow
def test_the_end_of_a_run_waits_at_most_finish_timeout(
    identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make, logged_warnings: Warnings
) -> None:
    tracker = make_wandb(identity, finish_timeout=1.0)
    log_rows(tracker)
    wandb_server.chaos("hang")
    began = time.monotonic()
    tracker.finish(0, SUMMARY)
    assert time.monotonic() - began < 30  # the server never answers

    (folder,) = (identity.folder / "wandb").glob("run-*")
    (warning,) = logged_warnings()
    assert "not everything was uploaded" in warning
    assert warning.endswith(f"wandb sync --include-online {folder}")
    wait_for_local_rows(folder, rows())
    assert tracker.describe()["mode"] == "failed"


def sync(folder: Path) -> None:
    """Run the command of the warning."""
    words = [sys.executable, "-m", "wandb", "sync", "--include-online", str(folder)]
    subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["429", "500", "hang", "reset"])
def test_sync_uploads_the_rows_that_a_failing_server_missed(
    mode: str, identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make
) -> None:
    tracker = make_wandb(identity, finish_timeout=2.0)
    log_rows(tracker, 0, 2)
    wandb_server.chaos(mode)
    log_rows(tracker, 2, 50)
    tracker.finish(0, SUMMARY)
    wandb_server.chaos("ok")
    (folder,) = (identity.folder / "wandb").glob("run-*")
    wait_for_local_rows(folder, rows(0, 50))
    sync(folder)
    assert without_sdk_keys(wandb_server.only_run().history) == rows(0, 50)


@pytest.mark.slow
@pytest.mark.usefixtures("reap")
def test_a_stuck_wandb_core_is_left_behind(
    identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydrant.extensions.wandb.tracker.GRACE_SECONDS", 0.5)
    tracker = make_wandb(identity, finish_timeout=0.5)
    kill_core(signal.SIGSTOP)
    began = time.monotonic()
    tracker.finish(0, {})
    assert time.monotonic() - began < 30  # a stopped process never answers
    kill_core(signal.SIGKILL)
    assert tracker.describe()["mode"] == "failed"
