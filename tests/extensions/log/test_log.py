"""`hydrant log` says in a line what each run, sweep and study asked and what came out, from their folders alone."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from answers import check
from planted import write_planted, write_run, write_study_record
from processes import modules_after
from run_states import sweep_in_all_states

from hydrant import cli
from hydrant.extensions.compare.comparison import compare
from hydrant.extensions.compare.sources import Question, read_runs


def log(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert cli.main(["log", *words, "--json"]) == 0
    return check(capsys.readouterr().out)["entries"]


def dated(folder: Path, time: float) -> None:
    """Let the files of a folder be as old as `time`."""
    for file in [*folder.rglob("*"), folder]:
        os.utime(file, (time, time), follow_symlinks=False)


def change_config(run: Path, **values: object) -> None:
    file = run / "config.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | values))


@pytest.fixture
def project(workdir: Path) -> Path:
    """A folder with, from old to new, a study, a run that failed, a sweep, and a run that finished."""
    study, sweep = (
        workdir / "multirun" / "study",
        write_planted(workdir / "multirun" / "2025-01-01" / "10-00-00"),
    )
    for optimizer in ("adamw", "muon"):
        write_run(study / optimizer, {"optimizer": optimizer, "seed": 1}, 0.9)
    write_study_record(study, ["adamw", "muon"], metric="val/loss", mode="min")
    (study / "sweep.json").write_text('{"began": 1, "jobs": []}')
    failed = write_run(workdir / "outputs" / "a", {"seed": 1}, None, status="failed", error="loss became NaN")
    run = write_run(workdir / "outputs" / "b", {"optimizer": "sgd", "seed": 3}, 0.91)
    change_config(run, claim="sgd is enough", notes="as asked\nby  Ann")
    summary = json.loads((run / "summary.json").read_text())
    best = {"metric": "val/accuracy", "value": 0.91, "num_updates": 100}
    (run / "summary.json").write_text(json.dumps(summary | {"best": best}))
    for age, folder in enumerate((run, sweep, failed, study)):
        dated(folder, 1.7e9 - age)
    return workdir


def test_each_run_sweep_and_study_has_an_entry_and_the_newest_is_last(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, failed, sweep, run = log(capsys)
    kinds = {"study": "multirun/study", "sweep": "multirun/2025-01-01/10-00-00"}
    assert {e["kind"]: e["folder"] for e in (study, sweep)} == kinds
    assert (study["asked"], study["sentence"]) == (
        "Which of adamw and muon has the lowest val/loss?",
        "Undecided: adamw and muon have the same mean of val/loss.",
    )
    assert study["states"] == {"finished": 2}
    assert (failed["asked"], failed["states"], failed["message"]) == (
        "seed=1",
        {"failed": 1},
        "loss became NaN",
    )
    assert sweep["asked"] == "optimizer=adamw,sgd,lion scheduler=cosine,wsd seed=0,1,2,3,4"
    assert sweep["states"] == {"finished": 17, "failed": 2, "not started": 1}
    expected = compare(read_runs([kinds["sweep"]]), Question()).verdict.sentence
    assert expected.startswith("Undecided: ")
    assert sweep["sentence"] == expected
    assert (run["asked"], run["claim"], run["notes"]) == (
        "optimizer=sgd seed=3",
        "sgd is enough",
        "as asked\nby  Ann",
    )
    assert (run["metric"], run["best"], run["best_num_updates"]) == ("val/accuracy", 0.91, 100)
    assert [run["time"], sweep["time"]] == [1.7e9, 1.7e9 - 1]


def test_a_line_has_what_was_asked_and_behind_a_bar_what_came_out(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["log", "--last=1"]) == 0
    earlier, line = capsys.readouterr().out.splitlines()
    assert earlier == "3 earlier: hydrant log --last=4 lists all"
    asked, outcome = line.partition(" run outputs/b: ")[2].split(" | ")
    assert asked == "optimizer=sgd seed=3; claim: sgd is enough; notes: as asked by Ann"
    assert outcome == "finished; val/accuracy 0.91 at update 100"
    assert [entry["folder"] for entry in log(capsys, "outputs", "outputs/a")] == ["outputs/a", "outputs/b"]


def test_nothing_trained_yet_is_an_empty_log(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert log(capsys) == []
    assert cli.main(["log"]) == 0
    assert capsys.readouterr().err == "no runs in outputs, multirun\n"
    for words in (["nowhere"], ["--last=0"]):
        assert cli.main(["log", *words]) == 2


def test_every_state_of_a_sweep_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [sweep] = log(capsys, str(sweep_in_all_states(tmp_path)))
    assert sum(sweep["states"].values()) == 8
    assert sweep["asked"].startswith("model=finished,running,killed,...,waiting (8 values)")
    assert sweep["sentence"] == "", "a single run has finished"


def test_strange_folders_are_read(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """No link is followed to another folder, no pipe is opened, and text does not control the terminal."""
    escapes = "\x1b]0;title\x07\x1b[2J\n\u202e"
    (project / "outputs" / "loop").symlink_to(project / "outputs")
    shutil.copytree(project / "outputs" / "b", project / "elsewhere")
    (project / "outputs" / "linked").symlink_to(project / "elsewhere")
    deep = project.joinpath("outputs", *"cdefghijk")
    write_run(deep, {}, 0.5)
    write_run(project / "outputs" / f"[ab]{escapes}", {}, 0.5)
    change_config(project / "outputs" / f"[ab]{escapes}", claim=escapes, notes=[1, {}])
    (project / "outputs" / "empty" / ".hydra").mkdir(parents=True)
    dated(project / "outputs" / "empty", 2**62)
    running = write_run(project / "outputs" / "piped", {}, 0.5, status="running")
    (running / "metrics.jsonl").unlink()
    for name in ("study.json", "sweep.json", "config.yaml", "metrics.jsonl"):
        (project / "outputs" / "pipes").mkdir(exist_ok=True)
        os.mkfifo(project / "outputs" / "pipes" / name)
    os.mkfifo(running / "metrics.jsonl")
    (project / "multirun" / "study" / "study.json").write_text('{"question": 1')
    (project / "multirun" / "2025-01-01" / "10-00-00" / "sweep.json").write_text("{")
    assert cli.main(["log", "outputs", "multirun"]) == 0
    printed = capfd.readouterr()
    names = [line.split(": ")[0].split()[2:] for line in printed.out.splitlines()]
    assert len(names) == 8
    assert not [name for name in ("linked", "loop", "c/d") if name in printed.out]
    assert not {"\x1b", "\x07", "\u202e"} & set(printed.out + printed.err)
    assert "study.json is damaged" in printed.out
    assert "sweep.json is damaged" in printed.err


def test_the_log_imports_no_torch_where_no_verdict_is_needed(project: Path) -> None:
    assert "torch" not in modules_after("from hydrant import cli; assert cli.main(['log', 'outputs']) == 0")
