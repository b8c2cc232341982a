"""Runs of a study: the verdict of the study leads, as its number of runs depends on their results."""

import json
from pathlib import Path
from typing import Any

import pytest
from planted import comparing, write_run, write_study_record

from hydrant.errors import RecordError
from hydrant.extensions.compare.serialize import for_paper, to_brief, to_text
from hydrant.extensions.study.report import read_earlier
from hydrant.records import PlannedJob, SweepPlan
from hydrant.sweeps.plan import write_plan

ACCURACIES = {"adamw": [0.90, 0.91, 0.89, 0.90, 0.92], "sgd": [0.80, 0.82, 0.80, 0.79, 0.81]}


def write_study(folder: Path, *, is_decided: bool, **protocol: Any) -> Path:
    """Write a study without tuning, with four fresh seeds, of an alpha that lets them decide or not."""
    for name, accuracies in ACCURACIES.items():
        for seed, accuracy in enumerate(accuracies):
            write_run(folder / f"{name}-{seed}", {"optimizer": name, "seed": seed}, accuracy)
    write_study_record(folder, [*ACCURACIES], alpha=0.05 if is_decided else 1e-9, **protocol)
    return folder


def test_an_undecided_study_is_not_decided_by_a_test_of_a_fixed_number(tmp_path: Path) -> None:
    study = write_study(tmp_path / "upd", is_decided=False)
    comparison = comparing(study)
    lines = to_text(comparison, None).splitlines()
    sentence = "Undecided: adamw leads sgd by 0.1 in val/accuracy, but 4 fresh seeds can decide nothing."
    [(rows, caption)] = for_paper(comparison)
    assert [row[-1] for row in rows] == ["verdict", "baseline", "-"]
    assert lines[0] == sentence in caption
    assert "This is the verdict of " in lines[1]
    assert lines[2].startswith(
        "Undecided, as the study is. If its number of runs had been chosen beforehand: adamw is better than sgd"
    )
    assert "so they claim too much." in comparison.caution
    brief = to_brief(comparison)
    assert (brief["verdict"]["status"], brief["verdict"]["winner"]) == ("undecided", None)
    assert (brief["study"]["status"], brief["study"]["winner"]) == ("undecided", None)


def test_the_answer_has_the_sizes_of_the_splits_that_all_runs_have(tmp_path: Path) -> None:
    for seed, num_train in enumerate((100, 100, 90)):
        summary = write_run(tmp_path / str(seed), {"seed": seed}, 0.9) / "summary.json"
        sizes = {"num_samples": {"train": num_train, "val": 360}}
        summary.write_text(json.dumps(json.loads(summary.read_text()) | sizes))
    assert to_brief(comparing(tmp_path))["num_samples"] == {"val": 360}
    summary = tmp_path / "2" / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"num_samples": None}))
    assert to_brief(comparing(tmp_path))["num_samples"] == {}, "one run does not say"


def test_a_decided_study_decides(tmp_path: Path) -> None:
    comparison = comparing(write_study(tmp_path / "upd", is_decided=True))
    evidence = "4 fresh seeds, 95 % interval 0.03 to 0.17"
    sentence = f"Decided: adamw is better than sgd by 0.1 in val/accuracy ({evidence}).\n"
    assert to_text(comparison, None).startswith(sentence)
    assert comparison.verdict.winner == "optimizer=adamw"


def test_a_forged_study_says_what_its_runs_say(tmp_path: Path) -> None:
    study = write_study(tmp_path / "upd", is_decided=True)
    true, file = comparing(study), study / "study.json"
    verdict = {"status": "decided", "winner": "sgd", "sentence": "Decided: sgd is better.\nBuy it"}
    verdict |= {"ended_by": "budget", "seeds_needed": 3}
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"verdict": verdict, "question": "Which to buy?\n"})
    )
    assert to_text(comparing(study), None) == to_text(true, None)


@pytest.mark.parametrize(
    "damage",
    [
        "[]",
        "\0",
        {"verdict.ended_by": "magic"},
        {"verdict.seeds_needed": "many"},
        {"protocol": {}},
        {"protocol.alpha": 1.5},
        {"protocol.first_fresh_seed": -1},
        {"protocol.budget": {"runs": -4}},
        {"protocol.contenders": {}},
        {"protocol.contenders": {"adamw\nDecided: adamw": ["optimizer=adamw"], "sgd": ["optimizer=sgd"]}},
        {"cost.wall_seconds": "1e999"},
        {"cost.num_starts": -3},
    ],
    ids=str,
)
def test_without_a_readable_study_the_comparison_decides(
    damage: str | dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path / "upd", is_decided=False)
    content = json.loads((study / "study.json").read_text())
    for key, value in damage.items() if isinstance(damage, dict) else ():
        section, _, name = key.partition(".")
        (content[section] if name else content)[name or section] = value
    text = damage if isinstance(damage, str) else json.dumps(content).replace('"1e999"', "1e999")
    (study / "study.json").write_text(text)
    with pytest.raises(RecordError, match="is damaged"):
        read_earlier(study)
    comparison = comparing(study)
    assert (comparison.study, comparison.verdict.status, comparison.caution) == (None, "decided", "")
    assert "the verdict of the study is unknown: " in capsys.readouterr().err


@pytest.mark.parametrize("metric", ["val/accuracy", "val/loss"])
@pytest.mark.parametrize(
    "options", [{}, {"by": ["optimizer"]}, {"by": ["optimizer"], "best_over": ["optimizer.lr"]}]
)
def test_the_runs_that_tuned_are_in_no_group(
    metric: str, options: dict[str, list[str]], tmp_path: Path
) -> None:
    """Whatever the metric and the options: a result that chose a setting flatters it."""
    study = write_study(tmp_path / "upd", is_decided=True)
    for lr in (0.01, 0.1):
        write_run(study / f"sgd-{lr}", {"optimizer": "sgd", "optimizer.lr": lr, "seed": 0}, 0.99)
    comparison = comparing(study, metric=metric, **options)
    assert [group.name for group in comparison.groups] == ["optimizer=adamw", "optimizer=sgd"]
    assert [list(group.results) for group in comparison.groups] == [["1", "2", "3", "4"]] * 2
    text = to_text(comparison, None)
    assert "The 4 runs of its tuning are left out; study.md lists them.\n" in text
    assert text.startswith("Decided: adamw is better than sgd by 0.")
    assert ("These are runs of " in text) == (metric == "val/loss")


def test_another_metric_than_that_of_the_study_has_a_verdict_of_its_own(tmp_path: Path) -> None:
    study = write_study(tmp_path / "upd", is_decided=False)
    comparison = comparing(study, metric="val/loss")
    lines = to_text(comparison, None).splitlines()
    assert lines[0].startswith(
        "Decided: adamw is better than sgd by 0.1 in val/loss (4 paired seeds, p < 0.001)"
    )
    assert "val/accuracy decided their number, so this claims too much" in lines[1]
    assert "so they claim too much." in comparison.caution


def test_until_a_study_has_fresh_seeds_all_its_runs_are_compared(tmp_path: Path) -> None:
    study = write_study(tmp_path / "upd", is_decided=False)
    for run in study.glob("*-[1-4]"):
        run.rename(tmp_path / run.name)
    comparison = comparing(study)
    assert len(comparison.runs) == 2
    assert "left out" not in to_text(comparison, None)
    assert comparison.verdict.sentence.endswith(", so chance may explain it."), "the study chooses the seeds"


def test_runs_of_a_study_beside_others_are_no_study(tmp_path: Path) -> None:
    study = write_study(tmp_path / "upd", is_decided=False)
    other = write_run(tmp_path / "more" / "lion", {"optimizer": "lion", "seed": 0}, 0.7)
    assert comparing(study, other).study is None


def test_seeds_that_came_after_results_count_as_a_further_look(tmp_path: Path) -> None:
    values = {"adamw": [0.93, 0.91, 0.95, 0.93], "sgd": [0.90, 0.895, 0.92, 0.91]}
    for n, (name, results) in enumerate(values.items()):
        for seed, value in enumerate(results):
            write_run(tmp_path / f"{n}-{seed}", {"optimizer": name, "seed": seed}, value)
    write_plan(tmp_path, SweepPlan(0.0, []))
    once = comparing(tmp_path).verdict
    assert once.status == "decided"
    assert once.lead is not None
    write_plan(tmp_path, SweepPlan(0.0, [], num_seed_additions=2))
    comparison = comparing(tmp_path)
    lead = comparison.verdict.lead
    assert lead is not None
    assert comparison.verdict.status == "undecided"
    assert lead.p_holm == pytest.approx(9 * (once.lead.p or 0.0))
    assert (lead.low, lead.high) == lead.interval(9)
    note = " Seeds came after results, so this is look 3 at them: each comparison counts 9 times."
    assert comparison.verdict.sentence.endswith(note)
    assert comparison.groups[1].versus is not None
    assert comparison.groups[1].versus.p_holm == lead.p_holm
    assert "p: t-test, corrected for 9 comparisons (1 group, look 3, squared)." in to_text(comparison, None)
    assert comparison.verdicts.noise.num_comparisons == 1, "fresh seeds are looked at once"
    asked: dict[str, Any] = {"against": "val/accuracy>=0.89", "sigma": 0.02}
    against = comparing(tmp_path, **asked).verdicts.against
    assert against is not None
    ps = {name: (test.p or 0.0, test.p_holm) for name, test in against.tests.items()}
    assert ps["optimizer=adamw"][1] == pytest.approx(9 * 2 * ps["optimizer=adamw"][0])
    assert against.sentences[-1] == note.strip()
    by_rule = comparing(tmp_path, **asked, critical=0.03).verdicts.against
    assert by_rule is not None
    assert by_rule.sentences[-1].endswith("this is look 3 at them, which the rule does not count.")


def test_a_job_of_a_study_that_has_not_begun_is_of_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    study = write_study(tmp_path / "upd", is_decided=False)
    (study / "sgd-4").rename(tmp_path / "gone")
    write_plan(study, SweepPlan(0.0, [PlannedJob("sgd-4", ["optimizer=sgd", "seed=4"])]))
    comparison = comparing("upd")
    assert "missing" in [run.state for run in comparison.runs]
    assert comparison.study is not None
    assert comparing("upd/adamw-*", f"{study}/sgd-*").study is not None, "one folder, written in two ways"
