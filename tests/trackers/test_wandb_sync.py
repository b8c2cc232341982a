"""`hydrant sync` brings what was kept offline to W&B, all of it and once, however often it is called or killed.

With the real SDK and its `wandb sync`.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hydrant import cli
from hydrant.locking import exclusive
from hydrant.trackers.base import RunIdentity
from hydrant.trackers.wandb_files import read_records, write_records
from hydrant.trackers.wandb_media import STAGING

from .wandb_rows import SUMMARY, Make, log_rows, own, rows
from .wandb_server import WandbServer

Report = dict[str, dict[str, str]]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where run folders lie; the current folder is the one above."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "study"


@pytest.fixture
def keep(make_wandb: Make, study: Path, identity: RunIdentity) -> Callable[..., Path]:
    """A run that was kept offline, with so many rows."""

    def make(name: str, stop: int = 5, start: int = 0, **changes: Any) -> Path:
        own_identity = replace(identity, folder=study / name, name=name)
        own_identity.folder.mkdir(parents=True, exist_ok=True)
        tracker = make_wandb(own_identity, num_updates=start, mode="offline", **changes)
        log_rows(tracker, start, stop)
        tracker.finish(0, SUMMARY)
        return own_identity.folder

    return make


@pytest.fixture
def sync(capsys: pytest.CaptureFixture[str]) -> Callable[..., Report]:
    def run(*words: str, status: int = 0) -> Report:
        capsys.readouterr()
        assert cli.main(["sync", "--json", *words]) == status
        return json.loads(capsys.readouterr().out)

    return run


def checkpoint(folder: Path, num_updates: int) -> Path:
    path = folder / "checkpoints" / f"update_{num_updates:08d}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(os.urandom(1000))
    (path / "manifest.json").write_text("{}")
    return path


def part_of(folder: Path) -> Path:
    (part,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    return part


def test_files_are_written_as_they_are_read(tmp_path: Path) -> None:
    from wandb.proto import wandb_internal_pb2 as pb

    generator = random.Random(0)
    sizes = [0, 1, 32740, 32741, 32755, 32768, 100_000, *(generator.randrange(300) for _ in range(500))]
    texts = [generator.randbytes(size // 2).hex() for size in sizes]
    records = [pb.Record(num=n, uuid=text) for n, text in enumerate(texts)]
    write_records(tmp_path / "run.wandb", records)
    assert read_records(tmp_path / "run.wandb") == records
    whole = (tmp_path / "run.wandb").read_bytes()
    (tmp_path / "torn.wandb").write_bytes(whole[:-5])
    assert read_records(tmp_path / "torn.wandb") == records[:-1]


def test_a_run_is_sent_once_with_its_checkpoint_wherever_it_lies(
    keep: Callable[..., Path],
    sync: Callable[..., Report],
    wandb_server: WandbServer,
    study: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    saved = checkpoint(study / "first", 5)
    (study / "first" / "checkpoints" / "best").symlink_to(saved.name)
    (study / "first" / "config.yaml").write_text("seed: 0\n")
    content = (saved / "model.safetensors").read_bytes()
    keep("first", log_checkpoints="best", log_config=True)
    (study / "first" / "checkpoints" / "best").unlink()
    for file in saved.iterdir():  # as what removes old checkpoints does
        file.unlink()
    (study / "first").rename(study / "moved")
    (study / "moved" / "summary.json").write_text('{"status": "finished", "wandb": {"mode": "offline"}}')
    assert sync("study", "--dry-run") == {"study/moved": {"state": "waiting", "detail": "1 part"}}
    assert wandb_server.operations == []

    with exclusive(study / "moved"):
        assert sync("study")["study/moved"]["state"] == "left out"
    monkeypatch.setenv("WANDB_MODE", "offline")  # what made it so may still be set
    assert sync("study") == {"study/moved": {"state": "sent", "detail": "5 rows"}}
    run = wandb_server.only_run()
    assert own(run.history) == rows()
    assert (run.state, run.summary["best/val/accuracy"]) == ("finished", 0.75)
    address = {"id": run.run_id, "mode": "online", "path": f"tester/hydrant/{run.run_id}"}
    assert json.loads((study / "moved" / "summary.json").read_text()) == {
        "status": "finished",
        "wandb": address,
    }
    weights, config = sorted(run.artifacts, key=lambda a: a.kind)
    assert (weights.kind, weights.metadata, weights.is_committed) == ("checkpoint", {"num_updates": 5}, True)
    assert set(weights.aliases) == {"latest", "best", "update_00000005"}
    assert weights.files["model.safetensors"] == content
    assert config.files == {"config.yaml": b"seed: 0\n"}
    assert not (study / "moved" / STAGING).exists()

    before = len(wandb_server.operations)
    assert sync("study") == {"study/moved": {"state": "already sent", "detail": ""}}
    assert len(wandb_server.operations) == before


def test_without_a_key_nothing_is_sent_and_it_is_said_what_to_do(
    keep: Callable[..., Path], wandb_home: Path, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = keep("first")
    assert cli.main(["sync", "study"]) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith("error: nothing is sent: no API key")
    assert told.endswith("give one by `wandb login`, or as WANDB_API_KEY")
    assert not list(folder.rglob("*.synced"))


def descendants(pid: int) -> list[int]:
    listed = [file.read_text().split() for file in Path(f"/proc/{pid}/task").glob("*/children")]
    children = [int(child) for children in listed for child in children]
    return [*children, *(below for child in children for below in descendants(child))]


def kill_sync(study: Path, wandb_server: WandbServer, patch: pytest.MonkeyPatch) -> None:
    """Call it on its own, and kill it and all that it started once a request with rows has arrived."""
    enough = threading.Event()
    stream = wandb_server.stream

    def counted(project: str, run_id: str, body: dict[str, Any]) -> None:
        stream(project, run_id, body)
        if (body.get("files") or {}).get("wandb-history.jsonl"):
            wandb_server.chaos("hang", "file_stream")
            enough.set()

    patch.setattr(wandb_server, "stream", counted)
    process = subprocess.Popen(
        [sys.executable, "-c", "from hydrant import cli; cli.main(['sync', 'study'])"],
        cwd=study.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert enough.wait(150)
    for pid in [*descendants(process.pid), process.pid]:
        os.kill(pid, signal.SIGKILL)
    process.wait()
    patch.undo()
    wandb_server.chaos("ok")


@pytest.mark.slow
def test_a_sync_that_was_killed_goes_on(
    keep: Callable[..., Path],
    sync: Callable[..., Report],
    wandb_server: WandbServer,
    study: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keep("first", 300)
    arrived = 0
    for _ in range(2):
        with monkeypatch.context() as patch:
            kill_sync(study, wandb_server, patch)
        before, arrived = arrived, len(wandb_server.only_run().history)
        assert before < arrived
        if arrived == 300:  # the SDK sends what it has read by then, on a quick machine all of it at once
            break
    told = sync("study")["study/first"]
    assert told["state"] == "sent"
    assert arrived == 300 or told["detail"] == f"{300 - arrived} rows"
    run = wandb_server.only_run()
    assert own(run.history) == rows(0, 300)
    assert [row["_step"] for row in run.history] == list(range(300))
    assert run.state == "finished"


@pytest.mark.slow
def test_parts_of_a_run_that_was_killed_and_resumed(
    keep: Callable[..., Path], sync: Callable[..., Report], wandb_server: WandbServer, study: Path
) -> None:
    folder = keep("first", 200)
    part = part_of(folder)
    part.write_bytes(part.read_bytes()[:-3000])  # as SIGKILL leaves it
    kept = sum(record.HasField("history") for record in read_records(part))
    assert 100 < kept < 200
    assert sync("study")["study/first"] == {"state": "sent", "detail": f"{kept} rows"}
    assert wandb_server.only_run().state == "failed"
    time.sleep(1)  # the SDK names the part's folder by the second
    keep("first", 210, start=200)
    assert sync("study")["study/first"] == {"state": "sent", "detail": "10 rows"}
    run = wandb_server.only_run()
    assert own(run.history) == rows(0, kept) + rows(200, 210)
    assert [row["_step"] for row in run.history] == list(range(kept + 10))
    assert run.state == "finished"


@pytest.mark.slow
def test_many_at_a_time_and_one_that_fails(
    keep: Callable[..., Path],
    sync: Callable[..., Report],
    wandb_server: WandbServer,
    study: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folders = [keep(f"run_{n}", 10 + n) for n in range(5)]
    part_of(folders[2]).write_bytes(b"junk")
    found = sync("study/run_*", "--jobs", "3", status=1)
    states = {Path(name).name: report["state"] for name, report in found.items()}
    assert states == {f"run_{n}": "failed" if n == 2 else "sent" for n in range(5)}
    assert "is not of the form that W&B 0.31 writes" in found["study/run_2"]["detail"]
    by_name = {run.name: own(run.history) for run in wandb_server.runs.values()}
    assert by_name == {f"run_{n}": rows(0, 10 + n) for n in (0, 1, 3, 4)}
    assert cli.main(["sync"]) == 0  # neither outputs nor multirun
    assert capsys.readouterr().out == "no W&B runs found\n"


@pytest.mark.slow
def test_what_a_server_refuses_or_what_takes_too_long_has_failed_and_is_sent_later(
    keep: Callable[..., Path], sync: Callable[..., Report], wandb_server: WandbServer, study: Path
) -> None:
    keep("first")
    wandb_server.chaos("hang", "file_stream")
    found = sync("study", "--timeout", "6", status=1)
    assert found["study/first"]["detail"] == "not done within 6 s; the same command goes on"
    time.sleep(1)
    wandb_server.chaos("ok")
    assert sync("study")["study/first"]["state"] == "sent"
    assert own(wandb_server.only_run().history) == rows()


@pytest.mark.slow
def test_a_file_of_an_artifact_that_is_gone_is_told(
    keep: Callable[..., Path], sync: Callable[..., Report], wandb_server: WandbServer, study: Path
) -> None:
    (study / "first").mkdir(parents=True)
    (study / "first" / "config.yaml").write_text("seed: 0\n")
    folder = keep("first", log_config=True)
    (folder / STAGING / "config.yaml" / "config.yaml").unlink()
    assert "config.yaml of an artifact is gone" in sync("study", status=1)["study/first"]["detail"]
    assert wandb_server.runs == {}
