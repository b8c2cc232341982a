"""Of a folder such as `outputs`, the runs with the data and the task of its newest run are compared."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from planted import write_run

from hydrant.extensions.compare.sources import read_runs, read_runs_by_path

SAME: list[dict[str, Any]] = [
    {"optimizer": "sgd"},
    {"seed": 1},
    {"data.root": "elsewhere"},
    {"data.augment": "flips"},
    {"data.added_later": None},
    {"data.test": "test.csv"},
]
OTHER: list[tuple[dict[str, Any], str]] = [
    ({"data": "mnist", "data.root": "there", "limit_val_samples": 5}, "data"),
    ({"task": "regression", "best.metric": "val/r2"}, "task"),
    ({"debug": "smoke", "limit_train_samples": 64}, "debug"),
    ({"data.val_ratio": 0.3, "folds": 5}, "data.val_ratio, folds"),
    ({"best.metric": "val/loss"}, "best.metric"),
]


def names(*words: object, by: Sequence[str] = ()) -> set[str]:
    return {run.name for run in read_runs([str(word) for word in words], by)}


@pytest.fixture
def outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "outputs" / "old", {"data": "mnist"}, 0.9)
    write_run(tmp_path / "outputs" / "newest", {}, 0.9, began=1.8e9)
    return Path("outputs")


@pytest.mark.parametrize("overrides", SAME)
def test_runs_of_the_same_data_and_task_are_compared(
    overrides: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "a", {}, 0.9)
    write_run(tmp_path / "b", overrides, 0.9, began=1.8e9)
    assert names(tmp_path) == {"a", "b"}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("overrides", "key"),
    [({"data": "mnist", "data.root": "there"}, "data"), ({"task": "regression"}, "task")],
)
def test_runs_may_differ_in_what_the_user_groups_by(
    overrides: dict[str, Any], key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "a", overrides | {"best.metric": "val/loss"}, 0.9)
    write_run(tmp_path / "b", {"best.metric": "val/loss"}, 0.9, began=1.8e9)
    assert names(tmp_path, by=["optimizer", key]) == {"a", "b"}
    assert capsys.readouterr().err == ""
    assert names(tmp_path, by=["optimizer"]) == {"b"}


@pytest.mark.parametrize(("overrides", "keys"), OTHER)
def test_runs_of_something_else_are_left_out_and_named(
    overrides: dict[str, Any], keys: str, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(outputs / "other", overrides, 0.9, began=1.75e9)
    assert names(outputs) == {"newest"}
    message = capsys.readouterr().err
    assert "2 of 3 runs are left out" in message
    assert "something else than outputs/newest" in message
    assert "outputs/other differ" in message or "outputs/old, outputs/other differ in data" in message
    assert f" in {keys}" in message
    assert "hydrant compare 'outputs/*' compares all runs of outputs" in message


def test_a_glob_a_sweep_runs_and_python_s_table_leave_nothing_out(planted: Path, outputs: Path) -> None:
    assert names("outputs/*") == names(*outputs.iterdir()) == {"old", "newest"}
    assert len(read_runs_by_path(["outputs"])) == 2
    assert len(names(planted)) == 20


def test_a_smoke_test_or_a_killed_run_is_not_the_newest_run(outputs: Path) -> None:
    write_run(outputs / "smoke", {"debug": "smoke"}, 0.9, began=1.9e9)
    write_run(outputs / "killed", {"data": "mnist"}, 0.9, status="running", began=1.9e9)
    assert names("outputs") == {"newest"}


def test_runs_that_failed_before_they_had_a_config_are_shown(outputs: Path) -> None:
    failed = write_run(outputs / "failed", {}, None, status="failed", error="no")
    (failed / "config.yaml").unlink()
    assert names("outputs") == {"newest", "failed"}
