"""`hydrant sync` uploads offline runs completely and once, even if it is killed or called again.

With the real SDK and its `wandb sync`.
"""

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from killing import kill
from wandb_rows import SUMMARY, Make, log_rows, rows, without_sdk_keys
from wandb_server import WandbServer

from hydrant import cli
from hydrant.extensions.wandb.sync import UploadResult, inspect, read_records, write_records
from hydrant.extensions.wandb.tracker import STAGING
from hydrant.runs.lock import exclusive
from hydrant.trackers import RunIdentity

Report = dict[str, dict[str, str]]


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the run folders; its parent is the current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "study"


@pytest.fixture
def run_offline(make_wandb: Make, study: Path, identity: RunIdentity) -> Callable[..., Path]:
    """Log the rows `start` to `stop` of an offline run. Returns its folder."""

    def make(name: str, stop: int = 5, start: int = 0, **changes: Any) -> Path:
        run_identity = replace(identity, folder=study / name, name=name)
        run_identity.folder.mkdir(parents=True, exist_ok=True)
        tracker = make_wandb(run_identity, num_updates=start, mode="offline", **changes)
        log_rows(tracker, start, stop)
        tracker.finish(0, SUMMARY)
        return run_identity.folder

    return make


@pytest.fixture
def sync(capsys: pytest.CaptureFixture[str]) -> Callable[..., Report]:
    def run(*words: str, status: int = 0) -> Report:
        capsys.readouterr()
        assert cli.main(["sync", "--json", *words]) == status
        return json.loads(capsys.readouterr().out)["runs"]

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


def test_an_upload_that_was_killed_near_its_end_waits(tmp_path: Path) -> None:
    """All its parts are sent, but the summary has no address yet."""
    part = tmp_path / "wandb" / "offline-run-1-abc" / "run-abc.wandb"
    part.parent.mkdir(parents=True)
    part.touch()
    assert inspect(tmp_path) == UploadResult("waiting", "1 part")
    part.with_name("run-abc.wandb.synced").touch()
    (tmp_path / "wandb" / ".sync").mkdir()
    assert inspect(tmp_path) == UploadResult("waiting", "the end of an upload")
    (tmp_path / "wandb" / ".sync").rmdir()
    assert inspect(tmp_path) == UploadResult("already sent", "")


def test_written_records_are_read_back(tmp_path: Path) -> None:
    from wandb.proto import wandb_internal_pb2 as pb

    generator = random.Random(0)
    sizes = [0, 1, 32740, 32741, 32755, 32768, 100_000, *(generator.randrange(300) for _ in range(500))]
    texts = [generator.randbytes(size // 2).hex() for size in sizes]
    records = [pb.Record(num=n, uuid=text) for n, text in enumerate(texts)]
    write_records(tmp_path / "run.wandb", records)
    assert read_records(tmp_path / "run.wandb") == records
    data = (tmp_path / "run.wandb").read_bytes()
    (tmp_path / "truncated.wandb").write_bytes(data[:-5])
    assert read_records(tmp_path / "truncated.wandb") == records[:-1]


def test_a_run_is_uploaded_once_with_its_checkpoint_also_after_a_move(
    run_offline: Callable[..., Path], sync: Callable[..., Report], wandb_server: WandbServer, study: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    saved = checkpoint(study / "first", 5)
    (study / "first" / "checkpoints" / "best").symlink_to(saved.name)
    content = (saved / "model.safetensors").read_bytes()
    run_offline("first", log_checkpoints="best")
    (study / "first" / "checkpoints" / "best").unlink()
    for file in saved.iterdir():  # as the retention of checkpoints does
        file.unlink()
    (study / "first").rename(study / "moved")
    (study / "moved" / "summary.json").write_text(
        '{"status": "finished", "num_updates": 5, "wandb": {"mode": "offline"}}'
    )
    assert sync("study", "--dry-run") == {"study/moved": {"state": "waiting", "detail": "1 part"}}
    assert wandb_server.operations == []

    with exclusive(study / "moved"):
        assert sync("study")["study/moved"]["state"] == "left out"
    monkeypatch.setenv("WANDB_MODE", "offline")  # may still be set as for the run
    assert sync("study") == {"study/moved": {"state": "sent", "detail": "5 rows"}}
    run = wandb_server.only_run()
    assert without_sdk_keys(run.history) == rows()
    assert (run.state, run.summary["best/val/accuracy"]) == ("finished", 0.75)
    address = {"id": run.run_id, "mode": "online", "path": f"tester/hydrant/{run.run_id}"}
    assert json.loads((study / "moved" / "summary.json").read_text()) == {
        "status": "finished",
        "num_updates": 5,
        "wandb": address,
    }
    (weights,) = run.artifacts
    assert (weights.kind, weights.metadata, weights.is_committed) == ("checkpoint", {"num_updates": 5}, True)
    assert set(weights.aliases) == {"latest", "best", "update_00000005"}
    assert weights.files["model.safetensors"] == content
    assert not (study / "moved" / STAGING).exists()

    num_operations = len(wandb_server.operations)
    assert sync("study") == {"study/moved": {"state": "already sent", "detail": ""}}
    assert len(wandb_server.operations) == num_operations


def test_without_a_key_nothing_is_uploaded_and_the_error_names_the_remedy(
    run_offline: Callable[..., Path], wandb_home: Path, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_offline("first")
    assert cli.main(["sync", "study"]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("error: nothing was uploaded: no API key")
    assert message.endswith("log in with `wandb login`, or set WANDB_API_KEY")
    assert not list(folder.rglob("*.synced"))


@pytest.fixture
def their_server(
    wandb_home: Path, wandb_server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """A server that a stranger's settings name. The user's own is in the settings of the home folder."""
    monkeypatch.delenv("WANDB_BASE_URL")
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(wandb_home))
    write_settings(wandb_home / "settings", wandb_server.url)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.setblocking(False)
        yield server


def write_settings(file: Path, url: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"[default]\nbase_url = {url}\n")


def url_of(server: socket.socket) -> str:
    return f"http://127.0.0.1:{server.getsockname()[1]}"


def assert_not_called(server: socket.socket) -> None:
    with pytest.raises(BlockingIOError):
        server.accept()


def test_settings_in_a_run_folder_choose_no_server(
    run_offline: Callable[..., Path], sync: Callable[..., Report], wandb_server: WandbServer,
    their_server: socket.socket, end_wandb: Callable[[], None],
) -> None:  # fmt: skip
    folder = run_offline("first")
    write_settings(folder / "wandb" / "settings", url_of(their_server))
    (folder / "random.py").write_text("open('ran', 'w')")
    end_wandb()  # the command reads the settings
    assert sync("study")["study/first"]["state"] == "sent"
    assert without_sdk_keys(wandb_server.only_run().history) == rows()
    assert_not_called(their_server)
    assert not (folder / "ran").exists()


@pytest.mark.slow
def test_settings_in_a_strangers_working_folder_choose_no_server(
    run_offline: Callable[..., Path], study: Path, their_server: socket.socket
) -> None:
    run_offline("first")
    write_settings(study.parent / "wandb" / "settings", url_of(their_server))
    command = [str(Path(sys.executable).with_name("hydrant")), "sync", "study"]
    done = subprocess.run(command, cwd=study.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "wandb/settings chooses a server or an account, and this folder is not trusted" in done.stderr
    assert_not_called(their_server)


def kill_sync(study: Path, wandb_server: WandbServer, patch: pytest.MonkeyPatch) -> None:
    """Run `hydrant sync` in a process, and kill it with its children when a request with rows has arrived."""
    has_rows = threading.Event()
    stream = wandb_server.stream

    def counted(project: str, run_id: str, body: dict[str, Any]) -> None:
        stream(project, run_id, body)
        if (body.get("files") or {}).get("wandb-history.jsonl"):
            wandb_server.chaos("hang", "file_stream")
            has_rows.set()

    patch.setattr(wandb_server, "stream", counted)
    process = subprocess.Popen(
        [sys.executable, "-c", "from hydrant import cli; cli.main(['sync', 'study'])"],
        cwd=study.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert has_rows.wait(150)
    kill([process.pid])
    process.wait()
    patch.undo()
    wandb_server.chaos("ok")


@pytest.mark.slow
def test_sync_continues_after_a_kill(
    run_offline: Callable[..., Path], sync: Callable[..., Report], wandb_server: WandbServer, study: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    run_offline("first", 300)
    arrived = 0
    for _ in range(2):
        with monkeypatch.context() as patch:
            kill_sync(study, wandb_server, patch)
        previous, arrived = arrived, len(wandb_server.only_run().history)
        assert previous < arrived
        if arrived == 300:  # the SDK sends the rows that it has read, on a fast machine all at once
            break
    result = sync("study")["study/first"]
    assert result["state"] == "sent"
    assert arrived == 300 or result["detail"] == f"{300 - arrived} rows"
    run = wandb_server.only_run()
    assert without_sdk_keys(run.history) == rows(0, 300)
    assert [row["_step"] for row in run.history] == list(range(300))
    assert run.state == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("place", ["", "files"])
def test_all_parts_of_a_killed_and_resumed_run_are_uploaded(
    place: str, run_offline: Callable[..., Path], sync: Callable[..., Report], wandb_server: WandbServer, study: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("WANDB_DIR", place)
    folder = run_offline("first", 200)
    part = part_of(Path(place) if place else folder)
    part.write_bytes(part.read_bytes()[:-3000])  # as SIGKILL leaves it
    num_rows = sum(record.HasField("history") for record in read_records(part))
    assert 100 < num_rows < 200
    assert sync("study")["study/first"] == {"state": "sent", "detail": f"{num_rows} rows"}
    assert wandb_server.only_run().state == "failed"
    time.sleep(1)  # the SDK names the part's folder by the second
    run_offline("first", 210, start=200)
    assert sync("study")["study/first"] == {"state": "sent", "detail": "10 rows"}
    run = wandb_server.only_run()
    assert without_sdk_keys(run.history) == rows(0, num_rows) + rows(200, 210)
    assert [row["_step"] for row in run.history] == list(range(num_rows + 10))
    assert run.state == "finished"


@pytest.mark.slow
def test_one_failed_upload_does_not_stop_the_others(
    run_offline: Callable[..., Path], sync: Callable[..., Report], wandb_server: WandbServer, study: Path, capsys:
    pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    folders = [run_offline(f"run_{n}", 10 + n) for n in range(5)]
    part_of(folders[2]).write_bytes(b"junk")
    results = sync("study/run_*", "--jobs", "3", status=1)
    states = {Path(name).name: result["state"] for name, result in results.items()}
    assert states == {f"run_{n}": "failed" if n == 2 else "sent" for n in range(5)}
    assert "does not have the format of W&B 0.31" in results["study/run_2"]["detail"]
    by_name = {run.name: without_sdk_keys(run.history) for run in wandb_server.runs.values()}
    assert by_name == {f"run_{n}": rows(0, 10 + n) for n in (0, 1, 3, 4)}
    assert cli.main(["sync"]) == 0  # there is neither outputs nor multirun
    assert capsys.readouterr().out == "no W&B runs found\n"


@pytest.mark.slow
def test_an_upload_that_times_out_has_failed_and_is_repeated_later(
    run_offline: Callable[..., Path], sync: Callable[..., Report], wandb_server: WandbServer, study: Path
) -> None:
    run_offline("first")
    wandb_server.chaos("hang", "file_stream")
    results = sync("study", "--timeout", "6", status=1)
    assert results["study/first"]["detail"] == "not finished within 6 s; the same command continues it"
    time.sleep(1)
    wandb_server.chaos("ok")
    assert sync("study")["study/first"]["state"] == "sent"
    assert without_sdk_keys(wandb_server.only_run().history) == rows()


@pytest.mark.slow
def test_a_missing_file_of_an_artifact_is_an_error(
    run_offline: Callable[..., Path], sync: Callable[..., Report], wandb_server: WandbServer, study: Path
) -> None:
    saved = checkpoint(study / "first", 5)
    (study / "first" / "checkpoints" / "best").symlink_to(saved.name)
    folder = run_offline("first", log_checkpoints="best")
    (folder / STAGING / saved.name / "model.safetensors").unlink()
    assert "model.safetensors of an artifact is missing" in sync("study", status=1)["study/first"]["detail"]
    assert wandb_server.runs == {}
