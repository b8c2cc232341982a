"""W&B receives what was logged, under the right name, and nothing else. With the real SDK."""

import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from marks import slow
from PIL import Image
from processes import fork
from tiny_runs import tiny_job, train
from wandb_rows import (
    SUMMARY,
    Make,
    Warnings,
    kill_core,
    local_rows,
    log_rows,
    read_finished,
    rows,
    without_sdk_keys,
)
from wandb_server import WandbServer

from hydrant.errors import ConfigError, log
from hydrant.extensions.wandb.sdk import files_folder
from hydrant.runs.record import read_metrics
from hydrant.trackers import Histogram, RunIdentity


def test_an_online_run_arrives_completely(
    identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make, capfd: pytest.CaptureFixture[str]
) -> None:
    file = identity.folder / "profile" / "trace[1].json"
    file.parent.mkdir()
    file.write_text('{"traceEvents": []}')
    tracker = make_wandb(identity, project="study", notes="why")
    log_rows(tracker)
    tracker.file(file)
    tracker.finish(0, SUMMARY)

    run = wandb_server.only_run()
    assert (run.project, run.group, run.job_type, run.name) == ("study", "adamw", "train", "adamw-0")
    assert (run.tags, run.notes) == (["baseline", "digits"], "why")
    assert run.config == identity.config
    assert without_sdk_keys(run.history) == rows()
    assert run.summary["best/val/accuracy"] == 0.75
    assert run.summary["best/num_updates"] == 3
    assert (run.state, run.exit_code) == ("finished", 0)
    assert tracker.describe() == {"id": run.run_id, "mode": "online", "path": f"tester/study/{run.run_id}"}
    assert run.files["profile/trace[1].json"] == file.read_bytes(), "under its path in the run folder"
    assert "WARNING" not in capfd.readouterr().err


def test_histograms_summaries_and_artifacts_arrive(
    identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = identity.folder / "checkpoints" / "update_00000003"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    described = replace(identity, notes="optimizer=adamw", best=("val/accuracy", "max"))
    tracker = make_wandb(described, log_checkpoints="all")
    for num_updates, accuracy in enumerate([0.5, 0.9, 0.7]):
        row = {"num_updates": num_updates, "epoch": 0.0, "time": 1e9, "val/accuracy": accuracy}
        tracker.log(row | {"train/loss": 1 - accuracy, "optim/lr": 0.1})
    tracker.histograms(2, {"weights/p": Histogram(-1.0, 1.0, (3, 1), 0.5, 0.75)})
    tracker.checkpoint(checkpoint)
    tracker.finish(0, SUMMARY)

    run = wandb_server.only_run()
    assert run.notes == "optimizer=adamw"
    assert run.summary["val/accuracy"] == {"last": 0.7, "max": 0.9}
    assert run.summary["train/loss"] == pytest.approx({"last": 0.3, "min": 0.1})
    assert run.summary["optim/lr"] == 0.1
    row = without_sdk_keys(run.history)[-1]
    assert row["num_updates"] == 2
    assert row["weights/p"] == {"_type": "histogram", "values": [3, 1], "bins": [-1.0, 0.0, 1.0]}
    (artifact,) = run.artifacts
    assert (artifact.name, artifact.is_committed) == (f"checkpoint-{run.run_id}", True)
    assert artifact.files == {"model.safetensors": b"weights"}
    assert (checkpoint / "model.safetensors").read_bytes() == b"weights"
    assert "WANDB_DATA_DIR" not in os.environ
    assert not [path for path in Path(os.environ["HOME"]).rglob("*") if "artifacts" in path.parts]


@pytest.mark.parametrize("machine_info", [False, *slow(True)])
def test_host_and_command_line_are_uploaded_only_on_request(
    machine_info: bool, identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make, monkeypatch:
    pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["train.py", "secret=hunter2"])
    tracker = make_wandb(identity, machine_info=machine_info)
    assert os.environ["WANDB_ERROR_REPORTING"] == "false"
    tracker.finish(0, {})
    run = wandb_server.only_run()
    assert (run.host is not None) == machine_info
    assert ("requirements.txt" in run.files) == machine_info
    assert any(b"hunter2" in content for content in run.files.values()) == machine_info
    assert (
        all(b"hunter2" not in path.read_bytes() for path in identity.folder.rglob("*.wandb")) or machine_info
    )
    assert not [name for name in wandb_server.operations if "otel" in name]


@pytest.mark.parametrize("mode", ["online", *slow("offline")])
def test_runs_of_one_process_at_the_same_time_do_not_mix(
    mode: str, identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make, tmp_path: Path
) -> None:
    """They end in another order than they began, as the lanes of a stack do. The last one continues later."""
    identities = [
        replace(identity, folder=tmp_path / f"{n}", name=f"run-{n}", config={"seed": n}) for n in range(4)
    ]
    trackers = [make_wandb(each, mode=mode) for each in identities]
    for num_updates in range(3):
        for n, tracker in enumerate(trackers):
            tracker.log(rows(10 * n + num_updates, 10 * n + num_updates + 1)[0])
    statuses = {0: 0, 2: 1, 1: 0, 3: 143}
    for n, status in statuses.items():
        trackers[n].finish(status, SUMMARY if n == 0 else {})
    ids = [tracker.describe()["id"] for tracker in trackers]
    assert len(set(ids)) == 4
    again = make_wandb(identities[3], 33, mode=mode)
    log_rows(again, 33, 35)
    again.finish(0, {})

    assert again.describe()["id"] == ids[3]
    if mode == "offline":
        for n, tracker in enumerate(trackers):
            folder = identities[n].folder / tracker.describe()["path"]
            read_finished(folder)
            assert local_rows(folder) == rows(10 * n, 10 * n + 3)
        return
    runs = [wandb_server.runs["hydrant", run_id] for run_id in ids]
    assert [(run.name, run.config) for run in runs] == [(f"run-{n}", {"seed": n}) for n in range(4)]
    assert [without_sdk_keys(run.history) for run in runs] == [
        *(rows(10 * n, 10 * n + 3) for n in range(3)),
        rows(30, 35),
    ]
    assert [run.exit_code for run in runs] == [0, 0, 1, 0]
    assert [("best/num_updates" in run.summary) for run in runs] == [True, False, False, False]


def test_texts_pictures_and_values_that_are_not_finite_arrive(
    identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make, logged_warnings: Warnings
) -> None:
    picture = identity.folder / "schedule.png"
    Image.new("RGB", (4, 4)).save(picture)
    tracker = make_wandb(identity, num_updates=7)
    tracker.text("poem", "<b>one\ntwo")
    tracker.image("schedule", picture)
    tracker.log({**rows(8, 9)[0], "train/loss": math.nan, "optim/grad_norm": math.inf})
    tracker.finish(0, {})

    run = wandb_server.only_run()
    poem, schedule, row = run.history
    assert (poem["num_updates"], poem["poem"]["_type"]) == (7, "html-file")
    assert b"<pre>&lt;b&gt;one\ntwo</pre>" in run.files.values()
    assert (schedule["num_updates"], schedule["schedule"]["_type"]) == (7, "image-file")
    assert picture.read_bytes() in run.files.values()
    assert math.isnan(row["train/loss"])
    assert row["optim/grad_norm"] == math.inf
    assert logged_warnings() == []


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
    assert without_sdk_keys(run.history) == rows(0, 8)
    assert [row["_step"] for row in run.history] == list(range(8))
    assert run.config["duration"] == 8
    assert run.state == "finished"


@pytest.mark.usefixtures("reap")
@pytest.mark.parametrize("num_arrived", [4, *slow(0)])
def test_a_resumed_run_sends_what_its_killed_process_has_not(
    num_arrived: int, identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make
) -> None:
    if num_arrived:
        whole = make_wandb(identity)
        log_rows(whole, 0, num_arrived)
        whole.finish(143, {})
    killed = make_wandb(identity, num_updates=num_arrived)
    log_rows(killed, num_arrived, 6)
    kill_core(signal.SIGKILL)
    assert without_sdk_keys(wandb_server.only_run().history) == rows(0, num_arrived), (
        "it sends every 15 seconds"
    )
    wandb_server.only_run().summary |= rows(5, 6)[0]  # it sometimes sends the summary before the rows
    killed.finish(1, {})
    resumed = make_wandb(replace(identity, history=lambda: rows(0, 5)), num_updates=5)
    log_rows(resumed, 5, 8)
    resumed.finish(0, {})
    run = wandb_server.only_run()
    assert without_sdk_keys(run.history) == rows(0, 8)
    assert [row["_step"] for row in run.history] == list(range(8))


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_a_run_stopped_in_a_terminal_and_continued_sends_each_row_once(
    signum: signal.Signals, wandb_server: WandbServer, workdir: Path
) -> None:
    """Ctrl-C reaches the processes of the SDK too, which must send the rest."""
    words = ("tracker=wandb", "duration=1000", "log_every=50", "save_every=150", "eval_every=null",
             "histogram_every=null", "averaging=none")  # fmt: skip
    job, printed = tiny_job(workdir / "outputs" / "run", *words), workdir / "printed"

    def train_in_terminal() -> int:
        os.setsid()
        with printed.open("w") as stderr, redirect_stderr(stderr):
            os.dup2(stderr.fileno(), 2)
            return train(job)

    pid = fork(train_in_terminal)
    while not (job.folder / "checkpoints" / "last").exists():
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
        time.sleep(0.002)
    os.killpg(pid, signum)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == (130 if signum == signal.SIGINT else -signum)
    assert "wandb" not in printed.read_text(), "W&B's own words would spoil the bar"
    assert os.waitpid(fork(train_in_terminal), 0)[1] == 0
    assert printed.read_text() == ""
    sent = [row["num_updates"] for row in wandb_server.only_run().history if "train/loss" in row]
    logged = [row["num_updates"] for row in read_metrics(job.folder) if "train/loss" in row]
    assert sent == logged == [*range(50, 1001, 50)]


def test_lost_rows_are_found_by_their_order_if_the_clock_was_set_back(
    identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make
) -> None:
    """The times of the second start are below those of the first, so only their order tells what the server lacks."""
    first = make_wandb(identity)
    log_rows(first, 0, 3)
    first.finish(143, {})
    later = [row | {"time": row["time"] - 1000} for row in rows(3, 5)]
    resumed = make_wandb(replace(identity, history=lambda: rows(0, 3) + later), num_updates=5)
    resumed.finish(0, {})
    assert without_sdk_keys(wandb_server.only_run().history) == rows(0, 3) + later


@pytest.mark.parametrize("is_told", [True, *slow(False)])
def test_rows_before_a_picture_are_not_sent_again(
    is_told: bool, identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make, monkeypatch:
    pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Also if the server does not tell the last row, where the summary decides."""
    first = make_wandb(identity)
    log_rows(first, 0, 5)
    first.text("poem", "one")
    first.histograms(5, {"weights": Histogram(0.0, 1.0, [1], 0.5, 0.25)})
    first.finish(143, {})
    if not is_told:
        monkeypatch.setattr("hydrant.extensions.wandb.sdk._HISTORY_TAIL", "query Unknown { unknown }")
    second = make_wandb(replace(identity, history=lambda: rows(0, 5)), num_updates=5)
    log_rows(second, 5, 8)
    second.finish(0, {})
    history = without_sdk_keys(wandb_server.only_run().history)
    assert [row for row in history if "train/loss" in row] == rows(0, 8)


def test_the_id_of_a_run_survives_a_move_of_its_folder(
    identity: RunIdentity, make_wandb: Make, tmp_path: Path
) -> None:
    def run_id(identity: RunIdentity) -> str:
        tracker = make_wandb(identity, mode="offline")
        tracker.finish(0, {})
        return tracker.describe()["id"]

    first = run_id(identity)
    copied = replace(identity, folder=shutil.copytree(identity.folder, tmp_path / "copied"))
    assert len({first, run_id(copied), run_id(identity)}) == 2  # a copy is another run
    moved = replace(identity, folder=identity.folder.rename(tmp_path / "moved"))
    assert run_id(moved) == first
    identity.folder.mkdir()  # another run in the place of the first one, as on another machine
    assert run_id(identity) != first


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
    sync = [sys.executable, "-m", "wandb", "sync", *parts]
    subprocess.run(sync, cwd=identity.folder, check=True, capture_output=True, timeout=60)

    run = wandb_server.only_run()
    assert without_sdk_keys(run.history) == rows(0, 10)
    assert [row["_step"] for row in run.history] == list(range(10))
    assert (run.group, run.host) == ("adamw", None)


def test_disabled_writes_nothing(identity: RunIdentity, make_wandb: Make, logged_warnings: Warnings) -> None:
    tracker = make_wandb(identity, mode="disabled")
    log_rows(tracker)
    tracker.image("schedule", identity.folder / "absent.png")
    tracker.finish(0, SUMMARY)
    assert list(identity.folder.iterdir()) == []
    assert (tracker.describe()["mode"], tracker.describe()["path"]) == ("disabled", None)
    assert logged_warnings() == []


def test_variables_of_wandb_count_for_keys_that_are_not_set(
    identity: RunIdentity, make_wandb: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog:
    pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """As in the SDK itself: the project, and so on, of `wandb.init` without arguments."""
    caplog.set_level(logging.INFO, log.name)
    keys = ("entity", "project", "job_type", "name", "notes", "tags")
    variables = {f"WANDB_{key.upper()}": f"{key}-1,{key}-2" for key in keys} | {"WANDB_RUN_GROUP": "group-1"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_DIR", str(tmp_path / "files"))

    def run_of(identity: RunIdentity, **changes: Any) -> dict[str, Any]:
        tracker = make_wandb(identity, mode="offline", **changes)
        tracker.finish(0, {})
        records = read_finished(identity.folder / tracker.describe()["path"])
        return next(record["run"] for record in records if record["type"] == "run")

    of_sdk = {"entity": "entity-1,entity-2", "project": "project-1,project-2", "job_type": "job_type-1,job_type-2",
              "display_name": "name-1,name-2", "notes": "notes-1,notes-2", "run_group": "group-1",
              "tags": ["tags-1", "tags-2"]}  # fmt: skip
    run = run_of(identity)
    assert {key: run[key] for key in of_sdk} == of_sdk
    assert list((tmp_path / "files" / "wandb").glob("offline-run-*"))
    assert "do not count" not in caplog.text

    tagged = replace(identity, config={**identity.config, "tags": ["baseline"]})
    run = run_of(tagged, project="mine", group="mine", tags=None)
    set_here = {"project": "mine", "run_group": "mine", "tags": ["baseline", "digits"]}
    assert {key: run[key] for key in of_sdk} == of_sdk | set_here
    [line] = [line for line in caplog.messages if "do not count" in line]
    reasons = ("PROJECT (tracker.project", "RUN_GROUP (tracker.group", "TAGS (tags")
    assert line.endswith(", ".join(f"WANDB_{reason} is set)" for reason in reasons))
    for variable, value in {"WANDB_PROJECT": "a/b", "WANDB_NAME": "x" * 129}.items():
        monkeypatch.setenv(variable, value)
        with pytest.raises(ConfigError, match=f"^{variable}: W&B does not accept '{value}'"):
            make_wandb(identity, project="mine" if variable == "WANDB_NAME" else None)
    monkeypatch.setenv("WANDB_DIR", str(Path.cwd()))  # as `wandb agent` does, where nobody has
    assert files_folder(identity.folder) == identity.folder.resolve()


@pytest.mark.parametrize("service", ["", "3-1-unix-/nonexistent/socket"])
def test_offline_on_request_causes_no_warning(
    service: str, identity: RunIdentity, wandb_server: WandbServer, make_wandb: Make, monkeypatch: pytest.MonkeyPatch,
    logged_warnings: Warnings,
) -> None:  # fmt: skip
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SERVICE", service)  # of a parent process that has ended
    unusual = replace(
        identity,
        name="lr=0.1,betas=[0.9,0.99]/ü:#?%" + "x" * 200,
        tags=("", "#?/", "y" * 70),
        group="z" * 129,
    )
    tracker = make_wandb(unusual)
    log_rows(tracker)
    tracker.finish(0, SUMMARY)

    assert logged_warnings() == []
    assert wandb_server.operations == []
    assert os.environ["WANDB_SERVICE"] == service
    records = read_finished(identity.folder / tracker.describe()["path"])
    (run,) = [record["run"] for record in records if record["type"] == "run"]
    lengths = len(run["display_name"]), len(run["run_group"]), [len(tag) for tag in run["tags"]]
    assert lengths == (128, 128, [3, 64])
    assert run["display_name"].startswith("lr=0.1,betas=[0.9,0.99]/ü:#?%")


@pytest.mark.parametrize(
    ("changes", "environment", "message"),
    [
        ({"mode": "auto"}, "shared", "tracker.mode: unknown WANDB_MODE 'shared'"),
        (
            {"project": "a/b"},
            "",
            "tracker.project: W&B does not accept 'a/b'; give 1 to 128 characters, in the name of a project none of /",
        ),
        ({"project": ""}, "", "tracker.project: W&B does not accept ''"),
        ({"tags": ["x" * 65]}, "", "; give 1 to 64 characters"),
        ({"name": "x" * 129}, "", "; give 1 to 128 characters"),
    ],
)
def test_settings_that_wandb_rejects_are_a_config_error(
    changes: dict[str, Any], environment: str, message: str, identity: RunIdentity, make_wandb: Make, monkeypatch:
    pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("WANDB_MODE", environment)
    with pytest.raises(ConfigError) as error:
        make_wandb(identity, **changes)
    assert message in str(error.value)
    assert error.value.key == f"tracker.{next(iter(changes))}"
    assert list(identity.folder.iterdir()) == []
