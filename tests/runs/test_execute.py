"""How a run ends: exit status, message and records after a failure or Ctrl-C; a finished run is not repeated."""

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from marks import slow
from run_folders import rows, summary
from training_runs import DIGITS, Train, UserModule, interrupt_at

from hydrant import cli
from hydrant.runs import execute, reporter
from hydrant.runs.record import RunRecord
from hydrant.trackers import NullTracker


class Failing:
    """Raises an error when it is called."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise self._error


def test_a_tracker_that_fails_does_not_fail_the_run(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(NullTracker, "finish", Failing(RuntimeError("not today")))
    folder = train(*DIGITS, "duration=4")
    printed = capsys.readouterr().out
    assert "tracker: RuntimeError: not today" in printed
    assert summary(folder)["status"] == "finished"
    assert (folder / "compile_report.json").is_file()


def test_a_record_that_cannot_be_written_fails_the_run(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reporter, "read_metrics", Failing(OSError(28, "No space left on device")))
    train(*DIGITS, "duration=4", status=1)
    assert capsys.readouterr().err == "error: OSError: [Errno 28] No space left on device\n"


def test_a_run_that_cannot_be_built_records_its_environment(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(execute, "build", Failing(RuntimeError("CUDA error: no kernel image")))
    folder = train(*DIGITS, "duration=4", status=1)
    record = summary(folder)
    assert record["status"] == "failed"
    assert record["error"] == {"type": "RuntimeError", "message": "CUDA error: no kernel image"}
    assert record["environment"]["torch"] == torch.__version__
    assert (record["num_updates"], record["total_updates"]) == (0, 4)


def test_an_unexpected_error_is_one_line_on_stderr_and_a_traceback_in_the_log(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class OddError(Exception): ...

    monkeypatch.setattr(execute, "prepare_timed", Failing(OddError("odd")))
    folder = train(*DIGITS, "duration=4", status=1)
    assert re.fullmatch(r"error: OddError: odd \(at test_execute.py:\d+\); \S+train.log has the traceback\n",
                        capsys.readouterr().err)  # fmt: skip
    assert "Traceback" in (folder / "train.log").read_text()


EXITS = """
from hydrant.errors import ConfigError
from hydrant.tasks import Classification

class Exits(Classification):
    def __init__(self, model, *, how, **rest):
        super().__init__(model, **rest)
        self.how = how

    def forward(self, batch):
        if self.training and len(batch.inputs) > 2:  # not in a trial, which has two samples
            raise ConfigError("how", "wrong") if self.how == "wrong" else SystemExit(self.how)
        return super().forward(batch)
"""


@pytest.mark.parametrize("how", [0, "'bad thing'", *slow(1, "wrong")])
def test_a_part_that_exits_while_it_trains_fails_the_run(
    how: object, train: Train, user_module: UserModule, capsys: pytest.CaptureFixture[str]
) -> None:
    user_module("exits", EXITS)
    words = ("allow_targets=[exits]", "task._target_=exits.Exits", f"+task.how={how}")
    folder = train(*DIGITS, *words, "duration=4", status=1)
    assert summary(folder)["status"] == "failed"
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    ("at", "what"), [*slow((2, "starts again")), (6, "continues from update_00000004")], ids=["early", "late"]
)
def test_a_second_ctrl_c_says_from_where_the_run_will_continue(
    at: int, what: str, train: Train, workdir: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with monkeypatch.context() as patch:
        interrupt_at(patch, at, times=2)
        train(*DIGITS, "duration=8", status=130)
        assert cli.main(["train", *DIGITS, "duration=8"]) == 130
    named, unnamed = capsys.readouterr().err.splitlines()
    assert named == f"stopped by SIGINT without saving; the same command {what}"
    stopped = "stopped by SIGINT without saving; the same command with hydra.run.dir="
    folder = unnamed.removeprefix(stopped).removesuffix(f" {what}")
    assert summary(workdir / folder)["status"] == "preempted"
    assert cli.main(["train", *DIGITS, "duration=8", f"hydra.run.dir={folder}"]) == 0
    assert rows(workdir / folder) == rows(train(*DIGITS, "duration=8"))


def test_finished_is_written_after_the_files_and_the_end_of_the_tracker(
    train: Train, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, folder = list[Any](), workdir / "outputs" / "run"

    def finish(self: NullTracker, exit_status: int, record: Mapping[str, Any]) -> None:
        seen.extend([summary(folder)["status"], (folder / "schedule.json").exists(), record["status"]])

    monkeypatch.setattr(NullTracker, "finish", finish)
    assert summary(train(*DIGITS, "duration=4"))["status"] == "finished"
    assert seen == ["running", True, "finished"]


@pytest.mark.parametrize(
    ("words", "what"),
    [((), "continues from update_00000004"), (("save_every=null",), "starts again")],
    ids=["saved", "unsaved"],
)
def test_ctrl_c_while_trackers_finish_leaves_the_end_to_the_next_start(
    words: Sequence[str], what: str, train: Train, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(NullTracker, "finish", Failing(KeyboardInterrupt()))
        folder = train(*DIGITS, "duration=4", *words, status=130)
    message = f"stopped by SIGINT before everything was written; the same command {what}\n"
    assert capsys.readouterr().err == message
    assert summary(folder)["status"] == "preempted"
    train(*DIGITS, "duration=4", *words)
    assert "already finished" not in capsys.readouterr().out
    assert summary(folder)["status"] == "finished"


@pytest.mark.extension
def test_a_start_that_completes_a_run_keeps_what_training_measured(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*DIGITS, "duration=4", "compile=dynamo")
    with monkeypatch.context() as patch:
        patch.setattr(NullTracker, "finish", Failing(KeyboardInterrupt()))
        folder = train(*words, status=130)
    before, report = summary(folder), (folder / "compile_report.json").read_text()
    begin = "hydrant.extensions.compile.Compile.begin"
    monkeypatch.setattr(begin, Failing(AssertionError("nothing is left to compile")))
    train(*words)
    after = summary(folder)
    assert after["status"] == "finished"
    assert before["compile"]["graphs"] == 1
    assert {key: after[key] for key in ("compile", "perf")} == {
        key: before[key] for key in ("compile", "perf")
    }
    assert (folder / "compile_report.json").read_text() == report


def test_a_run_whose_reports_cannot_be_written_is_completed_by_the_next_start(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent = list[tuple[int, str]]()

    def finish(self: NullTracker, exit_status: int, record: Mapping[str, Any]) -> None:
        sent.append((exit_status, str(record["status"])))

    monkeypatch.setattr(NullTracker, "finish", finish)
    with monkeypatch.context() as patch:
        patch.setattr(reporter, "write_json", Failing(OSError(28, "No space left on device")))
        folder = train(*DIGITS, "duration=4", status=1)
    assert capsys.readouterr().err == "error: OSError: [Errno 28] No space left on device\n"
    assert summary(folder)["status"] == "failed"
    train(*DIGITS, "duration=4")
    assert summary(folder)["status"] == "finished"
    assert sent == [(1, "failed"), (0, "finished")]
    assert (folder / "schedule.json").is_file()
    assert (folder / "compile_report.json").is_file()


def test_a_run_whose_last_status_cannot_be_written_fails(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    update_summary = RunRecord.update_summary

    def full(self: RunRecord, **fields: Any) -> None:
        if fields.get("status") == "finished":
            raise OSError(28, "No space left on device")
        update_summary(self, **fields)

    monkeypatch.setattr(RunRecord, "update_summary", full)
    folder = train(*DIGITS, "duration=4", status=1)
    assert capsys.readouterr().err == "error: OSError: [Errno 28] No space left on device\n"
    assert (summary(folder)["status"], summary(folder)["num_updates"]) == ("failed", 4)


def test_ctrl_c_while_a_stopped_run_ends_still_names_the_command_that_continues_it(
    train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(NullTracker, "finish", Failing(KeyboardInterrupt()))
        interrupt_at(patch, 3)
        train(*DIGITS, "duration=8", status=130)
    message = "stopped by SIGINT after update 3; the same command continues it"
    assert capsys.readouterr().err.splitlines()[-1] == message


def test_rows_are_in_order_although_clock_is_set_back(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    times = itertools.count(2e9, -100.0)
    monkeypatch.setattr("hydrant.training.reports.time.time", lambda: next(times))
    folder = train("tracker=local", "model.hidden=[4]", "duration=3", "log_every=1", "eval_every=null")
    logged = [json.loads(line)["time"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(logged) >= 3
    assert logged == sorted(set(logged))
    assert all(1.9e9 < time < 2e9 + 1 for time in logged)


@pytest.mark.extension
def test_a_refused_config_leaves_no_folder_although_the_data_were_warned_of(
    train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("pets.csv").write_text("x,pet,y\n" + "1,cat,0\n2,dog,1\n" * 20)
    Path("more.csv").write_text("x,pet,y\n1,cow,0\n")
    words = ("tracker=local", "data=csv", "data.train=pets.csv", "data.val=more.csv", "data.target=y",
             "model.hidden=[4]", "global_batch_size=4", "duration=1", "eval_every=null")  # fmt: skip
    for _ in range(2):
        train(*words, "best.metric=val/none", name="pets", status=2)
        assert "no category of data.train" in capsys.readouterr().out
        assert not Path("outputs").exists()
    log = train(*words, name="pets") / "train.log"
    content = log.read_text()
    assert "no category of data.train" in content
    train(*words, "duration=2", "best.metric=val/none", "resume_strict=false", name="pets", status=2)
    assert log.read_text().startswith(content), "the log of an earlier start stays"


def test_a_finished_run_is_kept_and_damage_named(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train(*DIGITS, "duration=4")
    times = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    train(*DIGITS, "duration=4")
    assert "already finished" in capsys.readouterr().out
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == times
    (folder / "summary.json").write_text("")
    train(*DIGITS, "duration=4", status=1)
    assert "summary.json is damaged (Input data was truncated" in capsys.readouterr().err
    (folder / "summary.json").unlink()
    (folder / "metrics.jsonl").write_text('{"num_updates": 0\n{"num_updates": 4}\n')
    train(*DIGITS, "duration=4", status=1)
    assert "metrics.jsonl is damaged" in capsys.readouterr().err
