"""Trackio's own store has what was logged, under one run for one run folder."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from trackio.sqlite_storage import SQLiteStorage

from hydrant.errors import ConfigError
from hydrant.extensions.trackio import ID_FILE, TrackioTracker
from hydrant.trackers import Histogram, RunIdentity


@pytest.fixture
def project(tmp_path: Path) -> str:
    """A project of this test alone, because all tests share Trackio's folder."""
    return f"{tmp_path.parent.name}-{tmp_path.name}"


def row(num_updates: int) -> dict[str, float]:
    loss = 1 / (1 + num_updates)
    return {
        "num_updates": num_updates,
        "epoch": num_updates / 4,
        "time": 1e9 + num_updates,
        "train/loss": loss,
    }


def logged(project: str, identity: RunIdentity, key: str) -> list[tuple[int, Any]]:
    run_id = (identity.folder / ID_FILE).read_text()
    rows = SQLiteStorage.get_logs(project, identity.name, run_id=run_id)
    return [(entry["step"], entry[key]) for entry in rows if key in entry]


def test_a_folder_that_cannot_be_written_is_an_error(
    identity: RunIdentity, project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trackio itself drops the rows, and says nothing."""
    (tmp_path / "file").touch()
    monkeypatch.setattr("trackio.sqlite_storage.TRACKIO_DIR", tmp_path / "file" / "trackio")
    with pytest.raises(OSError, match="trackio"):
        TrackioTracker(identity, 0, project=project)
    assert not (identity.folder / ID_FILE).exists()


def test_what_is_logged_is_read_back(
    identity: RunIdentity, project: str, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = identity.folder / "schedule.png"
    Image.new("RGB", (6, 4)).save(picture)
    tracker = TrackioTracker(identity, 0, project=project)
    for num_updates in range(3):
        tracker.log(row(num_updates))
    tracker.log({**row(3), "train/loss": math.inf})
    tracker.image("schedule", picture)
    tracker.text("samples", "to be")
    tracker.table("layers", ["name", "size"], [["fc", 10]])
    tracker.histograms(3, {"weights/fc": Histogram(0.0, 1.0, (3, 1), 1.2, 0.9)})
    tracker.finish(0, {"best": {"metric": "val/accuracy", "value": 0.75, "num_updates": 2}})

    *finite, last = logged(project, identity, "train/loss")
    assert finite == [(n, 1 / (1 + n)) for n in range(3)]
    assert (last[0], float(last[1])) == (3, math.inf)
    assert logged(project, identity, "best/val/accuracy") == [(3, 0.75)]
    for key in ("schedule", "samples", "layers", "weights/fc"):
        assert [step for step, _ in logged(project, identity, key)] == [3]
    config = SQLiteStorage.get_run_config(project, identity.name)
    assert config.items() >= {"optimizer.lr": 0.001, "tags": ["baseline", "digits"]}.items()
    assert capsys.readouterr().out == ""


def test_a_resumed_run_continues_under_its_id_with_each_row_once(identity: RunIdentity, project: str) -> None:
    first = TrackioTracker(identity, 0, project=project)
    for num_updates in range(6):
        first.log(row(num_updates))
    first.finish(143, {})
    run_id = (identity.folder / ID_FILE).read_text()
    second = TrackioTracker(identity, 4, project=project)
    for num_updates in range(5, 9):
        second.log(row(num_updates))
    second.finish(0, {})
    assert (identity.folder / ID_FILE).read_text() == run_id
    assert [step for step, _ in logged(project, identity, "train/loss")] == list(range(9))


def test_a_resumed_run_writes_what_its_killed_process_has_not(identity: RunIdentity, project: str) -> None:
    killed = TrackioTracker(identity, 0, project=project)
    killed.log(row(0))
    killed.finish(137, {})
    history = replace(identity, history=lambda: [row(n) for n in range(5)])
    resumed = TrackioTracker(history, 4, project=project)
    resumed.log(row(5))
    resumed.finish(0, {})
    assert [step for step, _ in logged(project, identity, "train/loss")] == list(range(6))


def test_the_hub_is_not_asked_who_the_user_is(
    identity: RunIdentity, project: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that drops the question would hold the run for ever."""
    asked = list[str]()
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr("huggingface_hub.whoami", lambda **_: asked.append("who") or {"name": "someone"})
    TrackioTracker(identity, 0, project=project).finish(0, {})
    assert asked == []


def test_runs_of_the_same_name_stay_apart(identity: RunIdentity, project: str, tmp_path: Path) -> None:
    other = RunIdentity(tmp_path / "other", identity.name, "g", "j", ())
    other.folder.mkdir()
    for place, run in enumerate((identity, other)):
        tracker = TrackioTracker(run, 0, project=project)
        tracker.log(row(place))
        tracker.finish(0, {})
    assert [step for step, _ in logged(project, identity, "train/loss")] == [0]
    assert [step for step, _ in logged(project, other, "train/loss")] == [1]


@pytest.mark.parametrize("name", ["lr_study", "größe-1", "数据"])
def test_a_project_has_its_name_in_trackio(name: str, identity: RunIdentity) -> None:
    tracker = TrackioTracker(identity, 0, project=name)
    tracker.log(row(0))
    tracker.finish(0, {})
    assert name in SQLiteStorage.get_projects()
    assert logged(name, identity, "train/loss") == [(0, 1.0)]


def test_a_missing_package_is_named_before_the_run_starts(
    identity: RunIdentity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydrant.installation.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"^tracker: tracker=trackio needs trackio: .*install.*\[trackio\]"):
        TrackioTracker(identity, 0, project="study")
