"""MLflow's own store has what was logged, under one run for one run folder."""

import contextlib
import math
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from hydrant.errors import ConfigError
from hydrant.extensions.mlflow import ID_FILE, MlflowTracker
from hydrant.trackers import NoAnswerError, RunIdentity, Trackers

MlflowClient = pytest.importorskip("mlflow").MlflowClient  # no wheel of its pyarrow for Python 3.15


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A local store, made once because MLflow takes seconds to create its tables."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        yield f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}"


@pytest.fixture
def make(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., MlflowTracker]:
    monkeypatch.chdir(tmp_path)
    return lambda identity, num_updates=0: MlflowTracker(
        identity, num_updates, experiment="study", tracking_uri=uri
    )


def row(num_updates: int, loss: float) -> dict[str, float]:
    return {
        "num_updates": num_updates,
        "epoch": num_updates / 4,
        "time": 1e9 + num_updates,
        "train/loss": loss,
    }


def run_of(identity: RunIdentity, uri: str) -> Any:
    return MlflowClient(uri).get_run((identity.folder / ID_FILE).read_text())


def losses(identity: RunIdentity, uri: str) -> list[tuple[int, int, float]]:
    history = MlflowClient(uri).get_metric_history(run_of(identity, uri).info.run_id, "train/loss")
    return [(metric.step, metric.timestamp, metric.value) for metric in history]


def test_what_is_logged_is_read_back(
    identity: RunIdentity, make: Callable[..., MlflowTracker], uri: str
) -> None:
    picture = identity.folder / "schedule.png"
    Image.new("RGB", (6, 4)).save(picture)
    tracker = make(identity)
    for num_updates in range(3):
        tracker.log(row(num_updates, 1 / (1 + num_updates)))
    tracker.log({**row(3, math.nan), "optim/betas@0": 0.9})
    tracker.image("schedule", picture)
    tracker.text("samples", "to be")
    tracker.table("layers", ["name", "size"], [["fc", 10]])
    tracker.finish(0, {"best": {"metric": "val/accuracy", "value": 0.75, "num_updates": 2}})

    run, client = run_of(identity, uri), MlflowClient(uri)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "adamw-0")
    assert run.data.params == {"optimizer": "adamw", "optimizer.lr": "0.001", "seed": "0", "model": "null"}
    assert run.data.tags.items() >= {"baseline": "true", "digits": "true", "group": "adamw"}.items()
    *finite, last = losses(identity, uri)
    assert finite == [(n, int((1e9 + n) * 1000), 1 / (1 + n)) for n in range(3)]
    assert last[0] == 3
    # MLflow stores a NaN as 0 with a mark, and its client reads the 0.
    assert math.isnan(last[2]) or last[2] == 0
    expected = {"best/val/accuracy": 0.75, "best/num_updates": 2, "optim/betas_0": 0.9}
    assert run.data.metrics.items() >= expected.items()
    kept = [a.path for folder in ("pictures/schedule", "texts/samples", "tables/layers", "")
            for a in client.list_artifacts(run.info.run_id, folder)]  # fmt: skip
    for path in ("pictures/schedule/schedule.png", "texts/samples/update_00000003.txt",
                 "tables/layers/update_00000003.csv", "summary.json"):  # fmt: skip
        assert path in kept


def test_a_resumed_run_continues_under_its_id_with_each_row_once(
    identity: RunIdentity, make: Callable[..., MlflowTracker], uri: str
) -> None:
    first = make(identity)
    for num_updates in range(6):
        first.log(row(num_updates, num_updates))
    first.finish(137, {})
    before = run_of(identity, uri)
    second = make(identity, num_updates=4)
    assert run_of(identity, uri).info.status == "RUNNING"
    for num_updates in range(4, 9):
        second.log(row(num_updates, num_updates))
    second.finish(0, {})
    after = run_of(identity, uri)
    assert (before.info.run_id, before.info.status) == (after.info.run_id, "KILLED")
    assert after.info.status == "FINISHED"
    assert [(step, value) for step, _, value in losses(identity, uri)] == [(n, n) for n in range(9)]


def test_a_run_that_continues_with_another_config_keeps_the_first_one(
    identity: RunIdentity, make: Callable[..., MlflowTracker], uri: str
) -> None:
    make(identity).finish(137, {})
    changed = replace(identity, config={**identity.config, "optimizer.lr": 0.1, "new": 1})
    for _ in range(2):  # the second one was killed before its next checkpoint
        make(changed, num_updates=4).finish(137, {})
    make(identity, num_updates=6).finish(137, {})
    assert run_of(identity, uri).data.params == {
        "optimizer": "adamw", "optimizer.lr": "0.001", "seed": "0", "model": "null",
        "new": "1",
    }  # fmt: skip


def test_a_resumed_run_sends_what_its_killed_process_has_not(
    identity: RunIdentity, make: Callable[..., MlflowTracker], uri: str
) -> None:
    rows = [row(n, n) for n in range(9)]
    for num_sent, num_updates in ((0, 3), (2, 5)):
        killed = make(identity)
        for sent in rows[:num_sent]:
            killed.log(sent)
        killed.finish(137, {})
        resumed = make(replace(identity, history=lambda end=num_updates: rows[:end]), num_updates)
        for again in rows[num_updates:]:
            resumed.log(again)
        resumed.finish(0, {})
        assert [(step, value) for step, _, value in losses(identity, uri)] == [(n, n) for n in range(9)]


@pytest.mark.slow
def test_rows_with_more_metrics_than_a_call_takes_arrive(
    identity: RunIdentity, make: Callable[..., MlflowTracker], uri: str
) -> None:
    tracker = make(identity)
    tracker.log(row(0, 0.5) | {f"weight_rms/{n}": n for n in range(1500)})
    tracker.finish(0, {})
    metrics = run_of(identity, uri).data.metrics
    assert len(metrics) == 1502
    assert metrics["weight_rms/1499"] == 1499
    assert len(losses(identity, uri)) == 1


def test_a_run_that_starts_again_leaves_no_old_rows(
    identity: RunIdentity, make: Callable[..., MlflowTracker], uri: str
) -> None:
    first = make(identity)
    first.log(row(0, 5.0))
    first.finish(1, {})
    failed = run_of(identity, uri)
    second = make(identity)
    second.log(row(0, 1.0))
    second.finish(0, {})
    assert failed.info.status == "FAILED"
    assert MlflowClient(uri).get_run(failed.info.run_id).info.lifecycle_stage == "deleted"
    assert [value for _, _, value in losses(identity, uri)] == [1.0]


@pytest.mark.parametrize("fails", ["at the start", "later"])
def test_a_store_that_fails_costs_one_warning(
    fails: str, identity: RunIdentity, uri: str, tmp_path: Path, logged_warnings: Callable[[], list[str]]
) -> None:
    (tmp_path / "file").touch()
    store = f"sqlite:///{tmp_path}/file/mlflow.db" if fails == "at the start" else uri
    node = {
        "_target_": "hydrant.extensions.mlflow.MlflowTracker",
        "_partial_": True,
        "experiment": "x",
        "tracking_uri": store,
    }
    trackers = Trackers({"tracker": node, "trackers": {}}, identity, 0)
    if fails == "later":
        MlflowClient(uri).delete_run((identity.folder / ID_FILE).read_text())
    for num_updates in range(3):
        trackers.log(row(num_updates, 0.5))
    trackers.finish(0, {})
    (warning,) = logged_warnings()
    assert warning.startswith("tracker: ")
    assert "it gets nothing more, training continues" in warning


def test_a_server_that_never_ends_its_answer_does_not_hold_the_run(
    identity: RunIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time limits of requests are those of each read, so an answer may come in bits for ever."""
    monkeypatch.setattr("hydrant.extensions.mlflow._START_SECONDS", 0.5)
    is_over = threading.Event()

    def answer(server: socket.socket) -> None:
        with contextlib.suppress(OSError), server.accept()[0] as connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while not is_over.wait(0.1):
                connection.sendall(b" ")

    pytest.importorskip("IPython")  # MLflow imports it in the abandoned thread, while later tests draw
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(NoAnswerError, match=r"no answer within 0\.5 s"):
            MlflowTracker(identity, 0, experiment="study", tracking_uri=uri)
        is_over.set()


def test_a_missing_package_is_named_before_the_run_starts(
    identity: RunIdentity, make: Callable[..., MlflowTracker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydrant.installation.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^tracker: tracker=mlflow needs mlflow: .*install.*\[mlflow\]"):
        make(identity)


@pytest.mark.slow
def test_jobs_that_start_together_share_a_new_store(tmp_path: Path) -> None:
    """MLflow itself fails here: each process creates the tables."""
    program = (
        "import sys; from pathlib import Path; from hydrant.trackers import RunIdentity\n"
        "from hydrant.extensions.mlflow import MlflowTracker\n"
        "folder = Path(sys.argv[1]); folder.mkdir()\n"
        "identity = RunIdentity(folder, folder.name, 'g', 'j', (), {'seed': folder.name})\n"
        "tracker = MlflowTracker(identity, 0, experiment='new', tracking_uri=None)\n"
        "tracker.log({'num_updates': 1, 'epoch': 0.1, 'time': 1e9, 'train/loss': 0.5}); tracker.finish(0, {})\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_")}
    jobs = [
        subprocess.Popen([sys.executable, "-c", program, name], cwd=tmp_path, env=environment)
        for name in "abc"
    ]
    assert [job.wait() for job in jobs] == [0, 0, 0]
    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("new")
    assert experiment is not None
    assert {run.data.params["seed"] for run in client.search_runs([experiment.experiment_id])} == {*"abc"}
