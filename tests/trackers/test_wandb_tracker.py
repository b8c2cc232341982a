"""W&B sees what was logged when it can; its absence costs a run one warning and no row. With the real SDK."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from hydrant.errors import ConfigError
from hydrant.trackers.base import RunIdentity
from hydrant.trackers.wandb import WandbTracker

from .wandb_server import WandbServer

Make = Callable[..., WandbTracker]
Warnings = Callable[[], list[str]]
SUMMARY = {"best": {"metric": "val/accuracy", "value": 0.75, "num_updates": 3}}


def rows(start: int = 0, stop: int = 5) -> list[dict[str, float]]:
    return [
        {"num_updates": n, "epoch": n / 10, "time": 1e9 + n, "train/loss": 1 / (1 + n)}
        for n in range(start, stop)
    ]


def log_rows(tracker: WandbTracker, start: int = 0, stop: int = 5) -> None:
    for row in rows(start, stop):
        tracker.log(row)


def own(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a history without what the SDK adds."""
    return [{key: value for key, value in row.items() if not key.startswith("_")} for row in history]


def read_local(folder: Path) -> list[dict[str, Any]]:
    """The records of a run in a W&B folder, by W&B's own reader: what `wandb leet inspect --json` runs."""
    from wandb.util import get_core_path

    (file,) = folder.glob("*.wandb")
    options = ["--no-observability", "--json", "--run-file", str(file), str(folder)]
    reader = [get_core_path(), "leet", "inspect", *options]
    lines = subprocess.run(reader, capture_output=True, text=True, check=True).stdout.splitlines()
    return [json.loads(line) for line in lines]


def local_rows(folder: Path) -> list[dict[str, Any]]:
    return own([record["history"]["item"] for record in read_local(folder) if record["type"] == "history"])


def kill_core(signum: int) -> None:
    """Send a signal to this process's wandb-core."""
    children = " ".join(path.read_text() for path in Path("/proc/self/task").glob("*/children")).split()
    (core,) = [pid for pid in children if "wandb-core" in Path(f"/proc/{pid}/cmdline").read_text()]
    os.kill(int(core), signum)


def test_an_online_run_arrives_whole(
    identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make
) -> None:
    tracker = make_wandb(identity, project="study", notes="why")
    log_rows(tracker)
    tracker.finish(0, SUMMARY)

    run = wandb_server.only_run()
    assert (run.project, run.group, run.job_type, run.name) == ("study", "adamw", "train", "adamw-0")
    assert (run.tags, run.notes) == (["baseline", "digits"], "why")
    assert run.config == identity.config
    assert own(run.history) == rows()
    assert run.summary["best/val/accuracy"] == 0.75
    assert run.summary["best/num_updates"] == 3
    assert (run.state, run.exit_code) == ("finished", 0)
    assert tracker.describe() == {"id": run.run_id, "mode": "online", "path": f"tester/study/{run.run_id}"}
    json.dumps(tracker.describe())


def test_what_may_tell_on_the_user_stays_here(
    identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", "secret=hunter2"])
    tracker = make_wandb(identity)
    tracker.finish(0, {})
    run = wandb_server.only_run()
    assert run.host is None
    assert "wandb-metadata.json" not in run.files
    assert all(b"hunter2" not in content for content in run.files.values())
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"
    assert not [name for name in wandb_server.operations if "otel" in name]


def test_two_runs_of_one_process_do_not_mix(
    identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make, tmp_path: Path
) -> None:
    first = make_wandb(identity)
    first.log(rows()[0])  # and never finished, as by a job that raised
    other = replace(
        identity, folder=tmp_path / "other", name="sgd-1", group="sgd", config={"optimizer": "sgd"}
    )
    second = make_wandb(other)
    second.log(rows()[1])
    second.finish(1, {})

    left_open, failed = wandb_server.runs.values()
    assert (left_open.name, left_open.group, left_open.config) == ("adamw-0", "adamw", identity.config)
    assert (failed.name, failed.group, failed.config) == ("sgd-1", "sgd", {"optimizer": "sgd"})
    assert own(left_open.history) == rows(0, 1)
    assert own(failed.history) == rows(1, 2)
    assert (failed.state, failed.exit_code) == ("failed", 1)
    assert (tmp_path / "other" / "wandb").is_dir()


def test_values_that_are_no_numbers_and_pictures_arrive(
    identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make, warnings_given: Warnings
) -> None:
    picture = identity.folder / "schedule.png"
    Image.new("RGB", (4, 4)).save(picture)
    tracker = make_wandb(identity, num_updates=7)
    tracker.image("schedule", picture)
    tracker.log({**rows(8, 9)[0], "train/loss": math.nan, "optim/grad_norm": math.inf})
    tracker.finish(0, {})

    run = wandb_server.only_run()
    assert run.history[0]["num_updates"] == 7
    assert run.history[0]["schedule"]["_type"] == "image-file"
    assert picture.read_bytes() in run.files.values()
    assert math.isnan(run.history[1]["train/loss"])
    assert run.history[1]["optim/grad_norm"] == math.inf
    assert warnings_given() == []


def no_key(server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY")


def malformed_key(server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "too-short")


def refused(server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")


def no_such_name(server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://wandb.invalid")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(60))  # a resolver that hangs


def init_fails(server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydrant.trackers.wandb.obstacle", lambda timeout: None)
    server.chaos("500")


def answer(mode: str) -> Callable[[WandbServer, pytest.MonkeyPatch], None]:
    def situation(server: WandbServer, monkeypatch: pytest.MonkeyPatch) -> None:
        server.chaos(mode)

    return pytest.param(situation, f"HTTP {mode}" if mode.isdigit() else "cannot be reached", id=mode)


@pytest.mark.parametrize(
    ("situation", "words"),
    [
        pytest.param(no_key, "no API key", id="no key"),
        pytest.param(malformed_key, "API key must have", id="malformed key"),
        pytest.param(refused, "cannot be reached", id="refused"),
        pytest.param(no_such_name, "cannot be reached", id="name resolution hangs"),
        *[answer(mode) for mode in ("401", "403", "404", "429", "500", "reset", "hang")],
        pytest.param(init_fails, "", id="start fails after the probe", marks=pytest.mark.slow),
    ],
)
def test_without_wandb_a_run_is_kept_offline(
    situation: Callable[[WandbServer, pytest.MonkeyPatch], None],
    words: str,
    identity: RunIdentity,
    wandb_server: WandbServer,
    make_wandb: Make,
    monkeypatch: pytest.MonkeyPatch,
    warnings_given: Warnings,
) -> None:
    situation(wandb_server, monkeypatch)
    began = time.monotonic()
    tracker = make_wandb(identity, probe_timeout=0.5, init_timeout=2.0, finish_timeout=2.0)
    assert (
        time.monotonic() - began < 0.5 + 2.0 + 6.0
    )  # the limits, and two starts of the SDK on a slow machine
    log_rows(tracker)
    tracker.finish(0, SUMMARY)

    where = tracker.describe()
    assert where["mode"] == "offline"
    folder = identity.folder / where["path"]
    (warning,) = warnings_given()
    assert words in warning
    assert warning.endswith(f"logging offline. Upload it later with: wandb sync {folder}")
    assert local_rows(folder) == rows()
    assert wandb_server.runs == {}


def test_a_resumed_run_continues_under_its_id(
    identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make
) -> None:
    first = make_wandb(identity)
    log_rows(first, 0, 5)
    first.finish(143, {})
    longer = replace(identity, config={**identity.config, "duration": 8})
    second = make_wandb(longer, num_updates=5)
    log_rows(second, 5, 8)
    second.finish(0, {})

    run = wandb_server.only_run()
    assert first.describe()["id"] == second.describe()["id"] == run.run_id
    assert own(run.history) == rows(0, 8)
    assert [row["_step"] for row in run.history] == list(range(8))
    assert run.config["duration"] == 8
    assert run.state == "finished"


def test_the_id_kept_in_the_folder_outlives_a_move(
    identity: RunIdentity, make_wandb: Make, tmp_path: Path
) -> None:
    before = make_wandb(identity, mode="disabled").describe()
    (identity.folder / "summary.json").write_text(json.dumps({"status": "failed", "wandb": before}))
    moved = replace(identity, folder=identity.folder.rename(tmp_path / "moved"))
    assert make_wandb(moved, mode="disabled").describe()["id"] == before["id"]
    (moved.folder / "summary.json").write_text("torn {")
    assert make_wandb(moved, mode="disabled").describe()["id"] != before["id"]


@pytest.mark.slow
def test_two_offline_parts_are_one_run_after_sync(
    identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make
) -> None:
    for start in (0, 5):
        part = make_wandb(identity, num_updates=start, mode="offline")
        log_rows(part, start, start + 5)
        part.finish(0, {})
        time.sleep(1)  # the SDK names the part's folder by the second
    parts = sorted(str(path) for path in (identity.folder / "wandb").glob("offline-run-*"))
    assert len(parts) == 2
    subprocess.run(
        [sys.executable, "-m", "wandb", "sync", *parts], check=True, capture_output=True, timeout=60
    )

    run = wandb_server.only_run()
    assert own(run.history) == rows(0, 10)
    assert [row["_step"] for row in run.history] == list(range(10))
    assert (run.group, run.host) == ("adamw", None)


def test_training_survives_the_death_of_wandb_core(
    identity: RunIdentity,
    wandb_server: WandbServer,
    make_wandb: Make,
    warnings_given: Warnings,
    tmp_path: Path,
) -> None:
    tracker = make_wandb(identity)
    log_rows(tracker, 0, 2)
    time.sleep(1.5)  # the file is flushed every second
    kill_core(signal.SIGKILL)
    time.sleep(0.1)
    log_rows(tracker, 2, 50)
    tracker.finish(0, SUMMARY)

    assert tracker.describe()["mode"] == "failed"
    (folder,) = (identity.folder / "wandb").glob("run-*")
    (warning,) = warnings_given()
    assert "logging stopped" in warning
    assert warning.endswith(f"wandb sync --include-online {folder}")
    assert local_rows(folder) == rows(0, 2)

    after = make_wandb(replace(identity, folder=tmp_path / "after"))
    log_rows(after)
    after.finish(0, {})
    assert after.describe()["mode"] == "online"


def test_the_end_of_a_run_waits_no_longer_than_told(
    identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make, warnings_given: Warnings
) -> None:
    tracker = make_wandb(identity, finish_timeout=1.0)
    log_rows(tracker)
    wandb_server.chaos("hang")
    began = time.monotonic()
    tracker.finish(0, SUMMARY)
    assert time.monotonic() - began < 3

    (folder,) = (identity.folder / "wandb").glob("run-*")
    (warning,) = warnings_given()
    assert "not everything was uploaded" in warning
    assert warning.endswith(f"wandb sync --include-online {folder}")
    assert local_rows(folder) == rows()
    assert tracker.describe()["mode"] == "failed"


@pytest.mark.slow
def test_a_wandb_core_that_is_stuck_is_left_behind(
    identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydrant.trackers.wandb.GRACE_SECONDS", 0.5)
    tracker = make_wandb(identity, finish_timeout=0.5)
    kill_core(signal.SIGSTOP)
    began = time.monotonic()
    tracker.finish(0, {})
    assert time.monotonic() - began < 4
    kill_core(signal.SIGKILL)
    assert tracker.describe()["mode"] == "failed"


def test_disabled_makes_nothing(identity: RunIdentity, make_wandb: Make, warnings_given: Warnings) -> None:
    tracker = make_wandb(identity, mode="disabled")
    log_rows(tracker)
    tracker.image("schedule", identity.folder / "absent.png")
    tracker.finish(0, SUMMARY)
    assert list(identity.folder.iterdir()) == []
    assert (tracker.describe()["mode"], tracker.describe()["path"]) == ("disabled", None)
    assert warnings_given() == []


@pytest.mark.parametrize("service", ["", "3-1-unix-/nonexistent/socket"])
def test_offline_on_request_warns_of_nothing(
    service: str,
    identity: RunIdentity,
    wandb_server: WandbServer,
    make_wandb: Make,
    monkeypatch: pytest.MonkeyPatch,
    warnings_given: Warnings,
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SERVICE", service)  # left over from a parent process that is gone
    odd = replace(
        identity,
        name="lr=0.1,betas=[0.9,0.99]/ü:#?%" + "x" * 200,
        tags=("", "#?/", "y" * 70),
        group="z" * 129,
    )
    tracker = make_wandb(odd)
    log_rows(tracker)
    tracker.finish(0, SUMMARY)

    assert warnings_given() == []
    assert wandb_server.operations == []
    assert "WANDB_SERVICE" not in os.environ
    records = read_local(identity.folder / tracker.describe()["path"])
    (run,) = [record["run"] for record in records if record["type"] == "run"]
    assert (len(run["display_name"]), len(run["run_group"]), [len(t) for t in run["tags"]]) == (
        128,
        128,
        [3, 64],
    )
    assert run["display_name"].startswith("lr=0.1,betas=[0.9,0.99]/ü:#?%")


@pytest.mark.parametrize(
    ("changes", "environment", "message"),
    [
        ({"mode": "onlin"}, "", "tracker.mode: unknown mode 'onlin'; did you mean 'online'"),
        (
            {"mode": "auto"},
            "shared",
            "tracker.mode: auto follows WANDB_MODE='shared'; it knows online, offline",
        ),
        ({"project": "a/b"}, "", "tracker.project: 'a/b': W&B takes none of the characters"),
        ({"project": ""}, "", "tracker.project: '' has 0 characters"),
        ({"tags": ["x" * 65]}, "", "has 65 characters, W&B takes 1 to 64"),
        ({"name": "x" * 129}, "", "has 129 characters, W&B takes 1 to 128"),
    ],
)
def test_what_wandb_would_refuse_is_a_config_error(
    changes: dict[str, Any],
    environment: str,
    message: str,
    identity: RunIdentity,
    make_wandb: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WANDB_MODE", environment)
    with pytest.raises(ConfigError) as error:
        make_wandb(identity, **changes)
    assert message in str(error.value)
    assert error.value.key == f"tracker.{next(iter(changes))}"
    assert list(identity.folder.iterdir()) == []
