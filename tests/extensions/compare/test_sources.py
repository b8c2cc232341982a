"""The runs that words name: folders, globs, sweeps, and folders that collect many; and what is read of each."""

import json
import os
import shutil
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marks import slow
from planted import comparing, write_run

from hydrant import cli
from hydrant.errors import RecordError
from hydrant.extensions.compare.serialize import to_text
from hydrant.extensions.compare.sources import read_runs, read_runs_by_path
from hydrant.runs.folder import LEASE
from hydrant.runs.record import read_rows


def repeated(times: int) -> bytes:
    """Return YAML in which each line repeats the one before twice."""
    lines = ["a0: &a0 [1, 1]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, times))]
    return "\n".join(lines).encode()


def names(*words: Path | str) -> list[str]:
    return [run.name for run in read_runs([str(word) for word in words])]


def test_a_sweep_a_glob_and_a_folder_name_the_same_runs(planted: Path) -> None:
    assert len(names(planted)) == 20
    assert len(names(f"{planted}/*")) == 19, "without the plan of the sweep, missing jobs are unknown"
    assert len(names(f"{planted}/*seed-0")) == 4
    assert names(planted / "optimizer-lion_scheduler-wsd_seed-0") == ["optimizer-lion_scheduler-wsd_seed-0"]
    assert len(names(planted, f"{planted}/*", planted)) == 20, "each run once"
    assert len(names(planted.parent)) == 20, "a folder may hold sweeps"


def test_hidden_folders_are_not_searched(tmp_path: Path) -> None:
    write_run(tmp_path / "a", {}, 0.9)
    write_run(tmp_path / ".trash" / "b", {}, 0.9)
    assert names(tmp_path) == ["a"]


def test_jobs_that_have_no_config_yet_have_that_of_the_plan(planted: Path, tmp_path: Path) -> None:
    sweep = shutil.copytree(planted, tmp_path / "sweep")
    [job] = (run for run in read_runs([str(sweep)]) if run.state == "missing")
    assert [job.config[key] for key in ("optimizer", "scheduler", "seed")] == ["sgd", "cosine", 4]
    (folder := sweep / Path(job.name).name).mkdir()
    (folder / LEASE).touch()  # the run prepares its data and model
    [starting] = (run for run in read_runs([str(sweep)]) if run.name == job.name)
    assert (starting.config, starting.state == "missing") == (job.config, False)


def test_runs_of_different_sweeps_have_different_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "one" / "seed-0", {"seed": 0}, 0.9)
    write_run(tmp_path / "other" / "seed-0", {"seed": 0}, 0.9)
    assert names("one", "other") == ["one/seed-0", "other/seed-0"]


def test_incomplete_run_folders_are_read(tmp_path: Path) -> None:
    write_run(tmp_path / "complete", {"seed": 0}, 0.9)
    (tmp_path / "begun" / ".hydra").mkdir(parents=True)
    (tmp_path / "begun" / ".hydra" / "overrides.yaml").write_text("- seed=1\n")
    truncated = write_run(tmp_path / "truncated", {"seed": 2}, 0.9)
    with (truncated / "metrics.jsonl").open("a") as file:
        file.write('{"num_updates": 101, "val/acc')
    states = {run.name: run.state for run in comparing(tmp_path).runs}
    assert states == {"complete": "finished", "begun": "not started", "truncated": "finished"}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("metrics.jsonl", b"nonsense\n"),
        ("summary.json", b"[]"),
        ("config.yaml", b"seed\n"),
        (".hydra/hydra.yaml", b"hydra:\n  runtime:"),
        ("config.yaml", b"[" * 100_000),
        ("summary.json", b'{"status": "finished", "num_updates": "x"}'),
        ("metrics.jsonl", b'{"num_updates": 1, "train/loss": "x"}\n'),
        *slow(
            ("metrics.jsonl", b'{"val/accuracy": 0.5}\n'),
            ("metrics.jsonl", b'{"num_updates": 1, "x": "\xff"}\n'),
            (".hydra/overrides.yaml", b"- 'seed"),
            (".hydra/hydra.yaml", b"hydra: {runtime: {choices: [1]}}"),
            (".hydra/overrides.yaml", b"- !!timestamp 2024-01-01"),
            ("config.yaml", b"a: !!timestamp 2024-01-01"),
            ("config.yaml", repeated(40)),
            ("summary.json", b'{"status": "finished"}'),
            ("summary.json", b'{"status": "finished", "num_updates": 1, "best": {"value": "x"}}'),
            (
                "summary.json",
                b'{"status": "finished", "num_updates": 1, "x": ' + b"[" * 900 + b"]" * 900 + b"}",
            ),
            ("metrics.jsonl", b"[" * 100_000 + b"\n"),
        ),
    ],
    ids=str,
)
def test_a_damaged_file_affects_only_its_run(file: str, text: bytes, tmp_path: Path) -> None:
    write_run(tmp_path / "complete", {"seed": 0}, 0.9)
    (write_run(tmp_path / "odd", {"seed": 3}, 0.9) / file).write_bytes(text)
    assert cli.main(["status", str(tmp_path / "odd"), str(tmp_path / "complete")]) == 0
    runs = {run.name: run for run in comparing(tmp_path).runs}
    assert {name: run.state for name, run in runs.items()} == {"complete": "finished", "odd": "damaged"}
    assert f"{file} is damaged" in runs["odd"].error


@pytest.mark.parametrize("file", ["config.yaml", "summary.json", "metrics.jsonl", ".hydra/hydra.yaml"])
def test_a_folder_in_the_place_of_a_file_affects_only_its_run(file: str, tmp_path: Path) -> None:
    write_run(tmp_path / "complete", {"seed": 0}, 0.9)
    path = write_run(tmp_path / "odd", {"seed": 3}, 0.9) / file
    path.unlink()
    path.mkdir()
    runs = {run.name: run for run in comparing(tmp_path).runs}
    assert {name: run.state for name, run in runs.items()} == {"complete": "finished", "odd": "damaged"}


@pytest.mark.parametrize("file", ["summary.json", "metrics.jsonl", "config.yaml"])
def test_a_file_of_50_gb_affects_only_its_run_and_no_memory(file: str, tmp_path: Path) -> None:
    """Of a stranger, that is: nothing that Hydrant writes is so large. The file is sparse."""
    write_run(tmp_path / "complete", {"seed": 0}, 0.9)
    with (write_run(tmp_path / "odd", {"seed": 3}, 0.9) / file).open("ab") as sparse:
        sparse.truncate(50 << 30)
    tracemalloc.start()
    assert cli.main(["status", str(tmp_path / "odd"), str(tmp_path / "complete")]) == 0
    runs = {run.name: run for run in comparing(tmp_path).runs}
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert {name: run.state for name, run in runs.items()} == {"complete": "finished", "odd": "damaged"}
    assert f"{file} is damaged (" in runs["odd"].error
    assert peak < 100 << 20


def test_a_damaged_plan_affects_only_the_missing_jobs(
    planted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = Path(shutil.copytree(planted, tmp_path / "sweep"))
    (sweep / "sweep.json").write_text("{")
    assert len(names(sweep)) == 19
    assert "sweep.json is damaged" in capsys.readouterr().err


def test_a_value_that_is_not_a_number_affects_only_its_run(tmp_path: Path) -> None:
    write_run(tmp_path / "complete", {"seed": 0}, 0.9)
    text = '{"num_updates": 1, "val/accuracy": "high"}\n'
    (write_run(tmp_path / "text", {"seed": 1}, 0.9) / "metrics.jsonl").write_text(text)
    runs = {run.name: run for run in comparing(tmp_path).runs}
    assert [name for name, run in runs.items() if run.state == "damaged"] == ["text"]
    assert "val/accuracy is a str, not a number" in runs["text"].error


def test_seconds_count_training_only(tmp_path: Path) -> None:
    """A pause between two processes, or a slow evaluation, changes `time` but not the updates per second."""
    folder = write_run(tmp_path / "run", {}, 0.9, num_rows=3, updates_per_second=25.0)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rows[2]["time"] += 3600
    rows[2]["perf/updates_per_second"] = 50.0
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (run,) = read_runs([str(folder)])
    assert run.seconds(np.array([0.0, 25.0, 50.0, 100.0])).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_runs_that_are_no_jobs_are_shown_by_name(planted: Path, tmp_path: Path) -> None:
    for number, lr in enumerate((0.1, 0.2)):
        write_run(tmp_path / f"tuned_{number}", {"optimizer.lr": lr}, 0.5 + lr)
    (title, *lines) = to_text(comparing(tmp_path), None).split("\n\n")[-2].splitlines()
    assert title.startswith("run      optimizer.lr")
    assert [line.split()[:2] for line in lines] == [["tuned_0", "0.1"], ["tuned_1", "0.2"]]
    assert "\nrun " not in to_text(comparing(planted), None)


def test_runs_equal_themselves_until_a_row_is_new(tmp_path: Path) -> None:
    """So a page is written again only then."""
    runs = [write_run(tmp_path / f"{n}", {"seed": n}, 0.9, num_rows=5) for n in range(3)]
    first, second = read_runs([str(tmp_path)]), read_runs([str(tmp_path)])
    assert second == first
    with (runs[2] / "metrics.jsonl").open("a") as file:
        file.write('{"num_updates": 200, "val/accuracy": null}\n')
    third = read_runs([str(tmp_path)])
    assert [new == old for new, old in zip(third, first, strict=True)] == [True, True, False]
    assert read_runs([str(tmp_path)]) == third, "a missing number is equal to itself"


def test_whole_lines_are_read_and_damaged_ones_are_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"

    def line(n: int, value: float = 1.0) -> str:
        return json.dumps({"num_updates": n, "train/loss": value}) + "\n"

    assert read_rows(path) == []
    path.write_text(line(1) + line(2) + line(3)[:9])
    assert [row["num_updates"] for row in read_rows(path)] == [1, 2], "a half-written line is not read"
    path.write_text(line(1) + "damaged\n")
    with pytest.raises(RecordError, match="damaged"):
        read_rows(path)
    assert len(read_rows(path, 1)) == 1, "what follows is not read"
    path.unlink()
    path.symlink_to(tmp_path / "nothing")
    with pytest.raises(RecordError, match=r"\(No such file"):
        read_rows(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(RecordError, match="a pipe"):
        read_rows(path)


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


def names_of_runs(*words: object, by: Sequence[str] = ()) -> set[str]:
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
    assert names_of_runs(tmp_path) == {"a", "b"}
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
    assert names_of_runs(tmp_path, by=["optimizer", key]) == {"a", "b"}
    assert capsys.readouterr().err == ""
    assert names_of_runs(tmp_path, by=["optimizer"]) == {"b"}


@pytest.mark.parametrize(("overrides", "keys"), OTHER)
def test_runs_of_something_else_are_left_out_and_counted(
    overrides: dict[str, Any], keys: str, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(outputs / "other", overrides, 0.9, began=1.75e9)
    assert names_of_runs(outputs) == {"newest"}
    message = capsys.readouterr().err
    assert "2 of 3 runs are left out" in message
    assert "something else than outputs/newest" in message
    assert f": 1 differs in data; 1 differs in {keys};" in message or ": 2 differ in data;" in message
    assert "hydrant compare 'outputs/*' compares all runs of outputs" in message


def test_a_glob_a_sweep_runs_and_python_s_table_leave_nothing_out(planted: Path, outputs: Path) -> None:
    assert names_of_runs("outputs/*") == names_of_runs(*outputs.iterdir()) == {"old", "newest"}
    assert len(read_runs_by_path(["outputs"])) == 2
    assert len(names_of_runs(planted)) == 20


def test_a_smoke_test_or_a_killed_run_is_not_the_newest_run(outputs: Path) -> None:
    write_run(outputs / "smoke", {"debug": "smoke"}, 0.9, began=1.9e9)
    write_run(outputs / "killed", {"data": "mnist"}, 0.9, status="running", began=1.9e9)
    assert names_of_runs("outputs") == {"newest"}


def test_runs_that_failed_before_they_had_a_config_are_shown(outputs: Path) -> None:
    failed = write_run(outputs / "failed", {}, None, status="failed", error="no")
    (failed / "config.yaml").unlink()
    assert names_of_runs("outputs") == {"newest", "failed"}
