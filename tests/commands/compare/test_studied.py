"""Runs of a study: the verdict of the study leads, as its number of runs depends on their results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from planted import Compare, write_run

from hydrant.commands.compare.serialize import to_brief
from hydrant.commands.compare.text_report import to_text
from hydrant.sweeps.plan import Plan, PlannedJob, write_plan

ACCURACIES = {"adamw": [0.90, 0.91, 0.89, 0.90, 0.92], "sgd": [0.80, 0.82, 0.80, 0.79, 0.81]}


def write_study(folder: Path, status: str, sentence: str, metric: str = "val/accuracy") -> Path:
    for name, accuracies in ACCURACIES.items():
        for seed, accuracy in enumerate(accuracies):
            write_run(folder / f"{name}-{seed}", {"optimizer": name, "seed": seed}, accuracy)
    verdict = {"status": status, "sentence": sentence, "winner": "adamw" if status == "decided" else None}
    protocol = {"metric": metric, "alpha": 1e-9}
    content = {"version": 1, "question": "Which is best?", "verdict": verdict, "protocol": protocol}
    (folder / "study.json").write_text(json.dumps(content))
    return folder


def test_an_undecided_study_is_not_decided_by_a_test_of_a_fixed_number(
    tmp_path: Path, comparing: Compare
) -> None:
    study = write_study(
        tmp_path / "upd", "undecided", "Undecided: adamw leads sgd by 0.098; all 5 seeds are used."
    )
    comparison = comparing(study)
    lines = to_text(comparison, None).splitlines()
    assert lines[0] == "Undecided: adamw leads sgd by 0.098; all 5 seeds are used."
    assert "This is the verdict of " in lines[1]
    assert lines[2].startswith(
        "Undecided by the study; with a number of runs chosen beforehand, adamw is better than sgd"
    )
    assert "so they claim too much." in comparison.caution
    brief = to_brief(comparison)
    assert (brief["verdict"]["status"], brief["verdict"]["winner"]) == ("undecided", None)
    assert (brief["study"]["status"], brief["study"]["winner"]) == ("undecided", None)


def test_a_decided_study_decides(tmp_path: Path, comparing: Compare) -> None:
    comparison = comparing(
        write_study(tmp_path / "upd", "decided", "Decided: adamw is better than sgd by 0.098.")
    )
    assert to_text(comparison, None).startswith("Decided: adamw is better than sgd by 0.098.\n")
    assert comparison.verdict.winner == "optimizer=adamw"


@pytest.mark.parametrize("damage", [None, "[]", '{"verdict": 3}', "\0"])
def test_without_a_readable_study_or_of_another_metric_the_comparison_decides(
    damage: str | None, tmp_path: Path, comparing: Compare, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path / "upd", "undecided", "Undecided: no result yet.", "val/loss")
    if damage is not None:
        (study / "study.json").write_text(damage)
    comparison = comparing(study)
    assert (comparison.study, comparison.verdict.status, comparison.caution) == (None, "decided", "")
    assert ("the verdict of the study is unknown: " in capsys.readouterr().err) == (damage is not None)


def test_runs_of_a_study_beside_others_are_no_study(tmp_path: Path, comparing: Compare) -> None:
    study = write_study(tmp_path / "upd", "undecided", "Undecided: no result yet.")
    other = write_run(tmp_path / "more" / "lion", {"optimizer": "lion", "seed": 0}, 0.7)
    assert comparing(study, other).study is None


def test_a_job_of_a_study_that_has_not_begun_is_of_the_study(
    tmp_path: Path, comparing: Compare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = write_study(tmp_path / "upd", "undecided", "Undecided: no result yet.")
    (study / "sgd-4").rename(tmp_path / "gone")
    write_plan(study, Plan(0.0, [PlannedJob(study / "sgd-4", ["optimizer=sgd", "seed=4"])]))
    comparison = comparing("upd")
    assert "missing" in [run.state for run in comparison.runs]
    assert comparison.study is not None
    assert comparing("upd/adamw-*", f"{study}/sgd-*").study is not None, "one folder, written in two ways"
