"""`--best-over`: the best learning rate of each optimizer, chosen by validation and judged on other results."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from planted import comparing, warning_texts, write_run

from hydrant import cli
from hydrant.errors import ConfigError
from hydrant.extensions.compare.serialize import to_text

RATES = {"adamw": (0.001, 0.01), "sgd": (0.01, 0.1, 1.0)}
BEST = {"adamw": 0.001, "sgd": 0.1}
MEANS = {"adamw": 0.95, "sgd": 0.93}
ASKED = {"by": ["optimizer"], "best_over": ["optimizer.lr"]}


def write_rates(sweep: Path, seeds: Sequence[int] = (0, 1, 2), *, has_test: bool = False) -> Path:
    """Each rate beside the best one is worse by 0.03. A test is 0.1 worse than the validation."""
    noise = np.random.default_rng(0).normal(0, 0.001, (2, 3, 10))
    for n, (optimizer, rates) in enumerate(RATES.items()):
        for m, lr in enumerate(rates):
            for seed in seeds:
                value = MEANS[optimizer] - 0.03 * (lr != BEST[optimizer]) + float(noise[n, m, seed])
                add_run(sweep, optimizer, lr, seed, value, has_test=has_test)
    return sweep


def add_run(
    sweep: Path, optimizer: str, lr: float, seed: int, value: float, *, has_test: bool = False
) -> None:
    keys = {"optimizer": optimizer, "optimizer.lr": lr, "seed": seed}
    run = write_run(sweep / f"{optimizer}-{lr}-{seed}", keys, value)
    if has_test:
        row = {"num_updates": 100, "time": 2e9, "test/accuracy": value - 0.1, "test/num_updates": 75}
        with (run / "metrics.jsonl").open("a") as file:
            file.write(f"{json.dumps(row)}\n")


def test_fresh_seeds_judge_the_rates_that_the_common_seeds_chose(tmp_path: Path) -> None:
    write_rates(tmp_path)
    for seed, noise in ((3, 0.001), (4, 0.0), (5, 0.002)):
        add_run(tmp_path, "adamw", 0.001, seed, 0.94 + noise)
        add_run(tmp_path, "sgd", 0.1, seed, 0.92)
    comparison = comparing(tmp_path, **ASKED)
    assert comparison.choice.judged_on == "fresh seeds"
    assert comparison.choice.values == {
        "optimizer=adamw": {"optimizer.lr": "0.001"}, "optimizer=sgd": {"optimizer.lr": "0.1"}
    }  # fmt: skip
    assert [list(group.results) for group in comparison.groups] == [["3", "4", "5"], ["3", "4", "5"]]
    lines = to_text(comparison, None).splitlines()
    assert (
        lines[0] == "Decided: adamw is better than sgd by 0.021 in val/accuracy (3 paired seeds, p < 0.001)."
    )
    assert "largest tried: 0.001 of optimizer=adamw. Try further" in lines[1], "two rates show no best one"
    assert lines[2] == (
        "The best optimizer.lr of each group, chosen by val/accuracy, is shown (optimizer=adamw: 0.001; optimizer=sgd: "
        "0.1). It is judged on val/accuracy of fresh seeds, which did not choose it (seed 3, seed 4, seed 5)."
    )
    assert comparison.verdicts.sensitivity is not None, "it is about all rates"


def test_a_run_that_shares_a_seed_or_a_split_with_the_choice_is_not_fresh(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(0, 0.001, 100).tolist()

    def add(rates: dict[str, tuple[float, ...]], pairs: Sequence[tuple[int, int]]) -> None:
        for optimizer, lr in [(name, lr) for name, lrs in rates.items() for lr in lrs]:
            for seed, split in pairs:
                keys = {"optimizer": optimizer, "optimizer.lr": lr, "seed": seed, "data.split_seed": split}
                value = MEANS[optimizer] - 0.03 * (lr != BEST[optimizer]) + noise.pop()
                write_run(tmp_path / f"{optimizer}-{lr}-{seed}-{split}", keys, value)

    best = {name: (lr,) for name, lr in BEST.items()}
    add(RATES, [(0, 0)])
    assert comparing(tmp_path, **ASKED).choice.judged_on == "same results"
    add(RATES, [(0, 1), (1, 0), (1, 1)])
    add(best, [(2, 0), (0, 2)])
    assert comparing(tmp_path, **ASKED).choice.judged_on == "same results"
    add(best, [(3, 3), (4, 4)])
    comparison = comparing(tmp_path, **ASKED)
    assert comparison.choice.judged_on == "fresh seeds"
    assert [list(group.results) for group in comparison.groups] == [["3 3", "4 4"]] * 2


def test_a_test_judges_where_there_are_no_fresh_seeds(tmp_path: Path) -> None:
    write_rates(tmp_path, has_test=True)
    comparison = comparing(tmp_path, **ASKED)
    assert (comparison.choice.judged_on, comparison.metric.name) == ("test", "test/accuracy")
    assert (
        "judged on test/accuracy of the same runs, so the means may be too good" in comparison.choice.sentence
    )
    assert comparison.groups[0].estimate.mean == pytest.approx(0.85, abs=0.002)
    assert comparison.verdict.num_comparisons == 3, "luck in validation is luck in the test too"
    assert comparison.verdict.status == "decided"
    asked = comparing(tmp_path, metric="test/accuracy", **ASKED)
    assert asked.choice.values == comparison.choice.values, "a test never chooses"
    assert asked.metric == comparison.metric
    assert "The best optimizer.lr of each group, chosen by val/accuracy" in asked.choice.sentence


def test_fresh_seeds_judge_the_test_too(tmp_path: Path) -> None:
    """A test of the seeds that chose is optimistic, because a lucky run often is lucky in its test too."""
    write_rates(tmp_path, has_test=True)
    for optimizer, lr in BEST.items():
        for seed in (3, 4, 5):
            add_run(tmp_path, optimizer, lr, seed, MEANS[optimizer] + seed / 1000, has_test=True)
    comparison = comparing(tmp_path, metric="test/accuracy", **ASKED)
    assert (comparison.choice.judged_on, comparison.verdict.num_comparisons) == ("fresh seeds", 1)
    assert [list(group.results) for group in comparison.groups] == [["3", "4", "5"]] * 2
    assert "chosen by val/accuracy, is shown (" in comparison.choice.sentence
    assert "judged on test/accuracy of fresh seeds" in comparison.choice.sentence


def test_the_seeds_to_plan_are_those_of_the_test_of_the_verdict(tmp_path: Path) -> None:
    write_rates(tmp_path)
    comparison = comparing(tmp_path, **ASKED)
    assert comparison.verdicts.noise.num_comparisons == comparison.verdict.num_comparisons == 3


def test_the_results_that_chose_count_as_many_comparisons(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_rates(tmp_path / "sweep")
    verdict = comparing(tmp_path / "sweep", **ASKED).verdict
    assert verdict.num_comparisons == 3, "sgd has three rates"
    assert verdict.lead is not None
    assert verdict.lead.p is not None
    assert verdict.lead.p_holm == pytest.approx(3 * verdict.lead.p)
    comparison = comparing(tmp_path / "sweep", **ASKED)
    [versus] = [group.versus for group in comparison.groups if group.versus is not None]
    assert versus.p_holm == verdict.lead.p_holm, "one comparison has one p-value"
    assert "p: t-test, corrected for 3 comparisons (1 group, 3 settings tried)." in to_text(comparison, None)
    words = ["compare", str(tmp_path / "sweep"), "--by", "optimizer", "--best-over", "optimizer.lr"]
    assert cli.main(words) == 0
    assert (
        "judged on the results that chose it: the comparisons are corrected for that, but the means are too good"
        in capsys.readouterr().out
    )
    assert cli.main([*words, "--json", "--details"]) == 0
    found = json.loads(capsys.readouterr().out)["best_over"]
    assert found["judged_on"] == "same results"
    assert found["values"]["optimizer=sgd"] == {"optimizer.lr": "0.1"}


def add_losses(sweep: Path, values: dict[str, float], name: str) -> None:
    """Add a row with another metric to the runs whose folders begin so."""
    for start, value in values.items():
        for n, run in enumerate(sorted(sweep.glob(f"{start}-*"))):
            row = {"num_updates": 100, "time": 2e9, name: value + n / 1000}
            with (run / "metrics.jsonl").open("a") as file:
                file.write(f"{json.dumps(row)}\n")


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ({}, "0.001"),
        ({"mode": "min"}, "0.01"),
        ({"metric": "val/loss"}, "0.01"),
        ({"metric": "train/loss"}, "0.01"),
        ({"metric": "val/loss", "mode": "max"}, "0.001"),
    ],
)
def test_the_metric_and_mode_that_are_asked_for_choose(
    asked: dict[str, str], chosen: str, tmp_path: Path
) -> None:
    write_rates(tmp_path)
    for metric in ("val/loss", "train/loss"):
        add_losses(tmp_path, {"adamw-0.001": 0.9, "adamw-0.01": 0.1, "sgd": 0.5}, metric)
    comparison = comparing(tmp_path, **ASKED, **asked)
    assert comparison.choice.values["optimizer=adamw"] == {"optimizer.lr": chosen}
    assert comparison.metric.name == asked.get("metric", "val/accuracy")


@pytest.mark.parametrize(
    ("metric", "judge"),
    [("train/loss", "train/loss"), ("val/loss", "test/loss"), ("val_ema/loss", "test_ema/loss")],
)
def test_the_test_of_a_validation_judges(metric: str, judge: str, tmp_path: Path) -> None:
    write_rates(tmp_path)
    for name in ("val_ema/loss", "test/loss", "test_ema/loss", "train/loss"):
        add_losses(tmp_path, {"adamw": 0.4, "sgd": 0.5}, name)
    assert comparing(tmp_path, metric=metric, **ASKED).metric.name == judge


@pytest.mark.parametrize("has_test", [False, True])
def test_a_group_without_a_result_stays(has_test: bool, tmp_path: Path) -> None:
    write_rates(tmp_path, has_test=has_test)
    for lr in (0.1, 1.0):
        keys = {"optimizer": "lion", "optimizer.lr": lr, "seed": 0}
        write_run(tmp_path / f"lion-{lr}", keys, None, status="failed")
    comparison = comparing(tmp_path, **ASKED)
    assert {group.name: group.num_runs for group in comparison.groups}["optimizer=lion"] >= 2
    assert "optimizer=lion" not in comparison.choice.values
    assert "failed: lion-0.1, lion-1.0; not included in any mean" in warning_texts(comparison)
    assert "runs of the same group differ" not in warning_texts(comparison)
    assert comparison.verdict.lead is not None
    assert comparison.verdict.lead.num_pairs == 3, "by the seed; the rates of lion pair nothing"
    assert "; lion has no result (" in comparison.verdict.sentence


def test_without_any_result_nothing_is_chosen(tmp_path: Path) -> None:
    write_run(tmp_path / "before", {"optimizer": "adamw", "optimizer.lr": 1.0}, 0.5, status="failed")
    for lr in (0.1, 0.2):
        keys = {"optimizer": "sgd", "optimizer.lr": lr}
        write_run(tmp_path / f"sgd-{lr}", keys, 0.5, status="failed")
    comparison = comparing(tmp_path, **ASKED)
    assert comparison.verdict.sentence.endswith("(3 failed).")
    assert comparison.choice.sentence == "No run has a result of val/accuracy, so no optimizer.lr is chosen."


def test_a_group_that_has_a_test_alone_is_refused(tmp_path: Path) -> None:
    write_rates(tmp_path, has_test=True)
    for lr in (0.1, 1.0):
        keys = {"optimizer": "lion", "optimizer.lr": lr, "seed": 0}
        write_run(tmp_path / f"lion-{lr}", keys, None)
    add_losses(tmp_path, {"lion": 0.9}, "test/accuracy")
    with pytest.raises(ConfigError, match="optimizer=lion has results of test/accuracy, but none of val/acc"):
        comparing(tmp_path, metric="test/accuracy", **ASKED)


def test_warnings_are_about_all_runs(tmp_path: Path) -> None:
    """Of repeats, of runs with several configs, and of failed runs of a setting that is not chosen."""
    write_rates(tmp_path)
    keys = {"optimizer": "adamw", "optimizer.lr": 0.001, "seed": 0}
    write_run(tmp_path / "again", keys, 0.9, began=1.6e9)
    several = write_run(tmp_path / "several", keys | {"seed": 1}, 0.9)
    summary = json.loads((several / "summary.json").read_text())
    stretches = [
        {"begin": 0, "end": 50, "config": {"optimizer.lr": 0.1}},
        {"begin": 50, "end": None, "config": {"optimizer.lr": 0.001}},
    ]
    (several / "summary.json").write_text(json.dumps(summary | {"stretches": stretches}))
    write_run(tmp_path / "failing", keys | {"optimizer.lr": 5.0}, None, status="failed")
    text = warning_texts(comparing(tmp_path, **ASKED))
    assert "1 run repeats a job with its seed" in text
    assert "runs that several configs trained are in no group: several" in text
    assert "failed: failing; not included in any mean" in text


def test_one_rate_each_is_no_choice(tmp_path: Path) -> None:
    for optimizer, lr in BEST.items():
        for seed in range(2):
            add_run(tmp_path, optimizer, lr, seed, 0.9)
    choice = comparing(tmp_path, **ASKED).choice
    assert (len(choice.runs), choice.num_tried) == (4, 1)
    assert choice.sentence == "Each group has one optimizer.lr at most, so none is chosen."


def test_a_rate_with_a_failed_run_is_not_chosen(tmp_path: Path) -> None:
    write_rates(tmp_path)
    for seed in range(3):
        keys = {"optimizer": "adamw", "optimizer.lr": 0.1, "seed": seed}
        options = {"status": "failed"} if seed == 2 else {}
        write_run(tmp_path / f"failing-{seed}", keys, None if options else 0.99, **options)
    assert comparing(tmp_path, **ASKED).choice.values["optimizer=adamw"] == {"optimizer.lr": "0.001"}


def test_a_key_that_cannot_be_chosen_is_refused_and_one_of_the_groups_chooses_nothing(tmp_path: Path) -> None:
    write_rates(tmp_path, seeds=(0,))
    message = r"--best-over: unknown key 'optimizer.rl'; did you mean 'optimizer.lr'"
    with pytest.raises(ConfigError, match=message):
        comparing(tmp_path, best_over=["optimizer.rl"])
    of_groups = comparing(tmp_path, by=["optimizer.lr"], best_over=["optimizer.lr"])
    assert of_groups.choice.sentence == "Each group has one optimizer.lr at most, so none is chosen."
