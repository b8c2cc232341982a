"""The verdict of `hydrant compare`: its first sentence about planted sweeps, in the terminal, JSON, Python and page."""

import io
import itertools
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from documentation import blocks
from marks import slow
from planted import comparing, write_run
from playwright.sync_api import Page, expect
from scipy import stats

import hydrant
from hydrant import cli
from hydrant.config.metric_keys import differing_definitions
from hydrant.extensions.compare.command import curves, write_page
from hydrant.extensions.compare.sections import sections_of
from hydrant.extensions.compare.serialize import for_paper, to_brief, to_text

Results = Mapping[str, Sequence[float | None]]
"""The results of the seeds of each optimizer; None: the run failed, NaN: its last value is not finite."""

NEVER = -1.0  # a seed without a run


def write_sweep(sweep: Path, results: Results) -> Path:
    for optimizer, values in results.items():
        for seed, value in enumerate(values):
            if value == NEVER:
                continue
            options = {"status": "failed"} if value is None else {}
            curve = [0.1, 0.5, None] if value is not None and math.isnan(value) else None
            final = None if curve else value
            keys = {"optimizer": optimizer, "seed": seed}
            write_run(sweep / f"{optimizer}-{seed}", keys, final, values=curve, **options)
    return sweep


CLEAR: Results = {"adamw": [0.950, 0.952, 0.951], "sgd": [0.900, 0.901, 0.902], "lion": [0.88, 0.884, 0.879]}
SWEEPS: dict[str, tuple[Results, str, str]] = {
    "a clear winner": (
        CLEAR, "decided",
        "Decided: adamw is better than sgd by 0.05 in val/accuracy"
        " (3 paired seeds, p < 0.001, corrected for 2 comparisons); "
        "also better than lion.",
    ),
    "a tie": (
        {"adamw": [0.91, 0.93, 0.92], "sgd": [0.93, 0.91, 0.917]}, "undecided",
        "Undecided: adamw leads sgd by 0.001 in val/accuracy"
        " over 3 paired seeds, but either may be better: the 95 % interval of the "
        "lead is -0.049 to 0.051. If this lead is real, about 3200 fresh seeds of each would show it: "
        "a sweep of these alone, or hydrant study.",
    ),
    "one seed each": (
        {"adamw": [0.95], "sgd": [0.90]}, "undecided",
        "Undecided: adamw leads sgd by 0.05 in val/accuracy"
        ", but there is one seed of each, so chance may explain it. Add seeds, such "
        "as seed=0,1,2.",
    ),
    "unequal seeds": (
        {"adamw": [0.950, 0.952, 0.951], "sgd": [0.97]}, "undecided",
        "Undecided: sgd has a better mean than adamw, but 2 of the 3 runs of sgd have no result (2 missing).",
    ),
    "three close leaders": (
        {"adamw": [0.95, 0.93, 0.94, 0.96], "sgd": [0.94, 0.94, 0.95, 0.94], "lion": [0.93, 0.95, 0.94, 0.94]},
        "undecided",
        "Undecided: adamw leads sgd by 0.0025 in val/accuracy"
        " over 4 paired seeds, but either may be better: the 95 % interval of the "
        "lead, corrected for 2 comparisons, is -0.029 to 0.034. If this lead is real, about 350 fresh seeds of each "
        "would show it: a sweep of these alone, or hydrant study.",
    ),
    "a third that is beaten": (
        {"adamw": [0.95, 0.93, 0.94, 0.96], "sgd": [0.94, 0.94, 0.95, 0.94], "lion": [0.85, 0.83, 0.84, 0.85]},
        "undecided",
        "Undecided: adamw leads sgd by 0.0025 in val/accuracy"
        " over 4 paired seeds, but either may be better: the 95 % interval of the "
        "lead, corrected for 2 comparisons, is -0.029 to 0.034. If this lead is real, about 200 fresh seeds of each "
        "would show it: a sweep of these alone, or hydrant study. adamw is better than lion.",
    ),
    "a failed run": (
        {"adamw": [0.950, 0.952, 0.951], "sgd": [0.900, None, 0.902]}, "decided",
        "Decided: adamw is better than sgd by 0.049 in val/accuracy (2 paired seeds, p = 0.006).",
    ),
    "NaN": (
        {"adamw": [0.950, 0.952, 0.951], "sgd": [0.970, math.nan, 0.972]}, "undecided",
        "Undecided: sgd has a better mean than adamw, but 1 of the 3 runs of sgd has no result (1 not finite).",
    ),
    "one setting": (
        {"adamw": [0.950, 0.952, 0.951]}, "one_setting",
        "One setting: val/accuracy 0.951 over 3 seeds (95 % interval 0.9485 to 0.9535). There is nothing to compare it "
        "with.",
    ),
    "one run": (
        {"adamw": [0.95]}, "one_setting", "One run: val/accuracy 0.95. There is nothing to compare it with.",
    ),
    "no results": (
        {"adamw": [None, None], "sgd": [None, math.nan]}, "no_runs",
        "No result: no run has finished with a finite val/accuracy (3 failed, 1 not finite).",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SWEEPS)
def test_the_first_sentence_is_the_verdict(name: str, tmp_path: Path) -> None:
    results, status, sentence = SWEEPS[name]
    comparison = comparing(write_sweep(tmp_path, results))
    assert to_text(comparison, None).splitlines()[0] == sentence
    assert (comparison.verdict.status, comparison.verdict.sentence) == (status, sentence)
    assert (comparison.verdict.winner is not None) == (status == "decided")


def test_the_guide_shows_sentences_of_these_sweeps() -> None:
    [shown] = [block for block in blocks("docs/guides/compare.md", "text") if block.startswith("Decided: ")]
    assert shown.splitlines() == [SWEEPS[name][2] for name in ("a clear winner", "a tie")]


@pytest.mark.parametrize(("name", "lead"), [("a clear winner", -0.05), ("a tie", -0.001)])
def test_less_of_a_loss_is_better(name: str, lead: float, tmp_path: Path) -> None:
    """The sentence is that of an accuracy: the interval of a lead is above 0 where the leader is better."""
    results, _, sentence = SWEEPS[name]
    verdict = comparing(write_sweep(tmp_path, results), metric="val/loss").verdict
    assert verdict.sentence == sentence.replace("val/accuracy", "val/loss")
    assert verdict.lead is not None
    assert verdict.lead.mean == pytest.approx(lead)


@pytest.mark.parametrize(
    ("results", "sentence"),
    [
        ({"adamw": [0.95, 0.96, None], "sgd": [0.9, 0.91, 0.9, 0.92]},
         "Undecided: adamw has a better mean than sgd, but 2 of the 4 runs of adamw have no result (1 failed, 1 "
         "missing)."),
        ({"adamw": [0.95, 0.96, None], "sgd": [0.9, None, 0.9]},
         "Undecided: adamw leads sgd by 0.055 in val/accuracy, but 1 of the 3 runs of adamw has no result (1 failed)."),
        ({"adamw": [0.95, 0.96], "sgd": [None, None]},
         "Undecided: only adamw has results; sgd has no result (2 failed)."),
        ({"adamw": [0.95, 0.96], "sgd": [0.93, 0.94]},
         "Undecided: adamw leads sgd by 0.02 in val/accuracy"
         ", but by the same amount on each of the 2 common seeds, so the noise is "
         "unknown."),
        ({"adamw": [0.95, 0.97, 0.95, 0.96, NEVER, NEVER], "sgd": [NEVER, NEVER, 0.94, 0.95, 0.96, 0.94]},
         "Undecided: adamw leads sgd by 0.01 in val/accuracy"
         ", but by the same amount on each of the 2 common seeds, so the noise is "
         "unknown."),
        ({"adamw": [0.95, 0.95], "sgd": [NEVER, NEVER, 0.93, 0.93]},
         "Undecided: adamw leads sgd by 0.02 in val/accuracy"
         ", but all results of each are equal, so the noise is unknown."),
        ({"adamw": [0.90, 0.99], "sgd": [0.91]},
         "Undecided: adamw has the better mean, but on the 1 common seed, sgd is better by 0.01."),
        ({"adamw": [0.950, 0.952, 0.951], "sgd": [0.900, 0.901, 0.902], "lion": [None, None, None]},
         "Decided: adamw is better than sgd by 0.05 in val/accuracy"
         " (3 paired seeds, p < 0.001); lion has no result (3 failed)."),
        ({"adamw": [0.950, 0.952, 0.951], "sgd": [0.900, 0.901, 0.902],
          **{name: [None] for name in ("lion", "muon", "adan", "sophia")}},
         "Decided: adamw is better than sgd by 0.05 in val/accuracy"
         " (3 paired seeds, p < 0.001); 4 other groups have no result."),
        ({"adamw": [0.95, 0.95], "sgd": [0.95, 0.95]},
         "Undecided: adamw and sgd have the same mean of val/accuracy."),
        ({"adamw": [0.9500002, 0.95], "sgd": [0.95, 0.95]},
         "Undecided: adamw and sgd have the same mean of val/accuracy, but for the rounding of float32 numbers."),
        ({"adamw": [0.95], "sgd": [NEVER, 0.9, 0.92]},
         "Undecided: adamw leads sgd by 0.04 in val/accuracy"
         ", but adamw has one result, so chance may explain it. Add seeds, such as "
         "seed=0,1,2."),
        ({"adamw": [0.90, 0.90, NEVER, 0.99, 0.99, 0.99], "sgd": [0.91, 0.912, 0.95]},
         "Undecided: adamw has the better mean, but on the 2 common seeds, sgd is better by 0.011."),
        ({"adamw": [0.90, 0.90, None, 0.99], "sgd": [0.91, 0.912, 0.94, None]},
         "Undecided: adamw has the better mean, but on the 2 common seeds, sgd is better by 0.011."),
        ({"adamw": [0.95, 0.951, 0.949], "sgd": [NEVER, NEVER, NEVER, 0.93, 0.932, 0.931]},
         "Decided: adamw is better than sgd by 0.019 in val/accuracy (3 and 3 unpaired seeds, p = 0.002)."),
    ],
)  # fmt: skip
def test_other_reasons_for_no_decision_are_named(results: Results, sentence: str, tmp_path: Path) -> None:
    assert comparing(write_sweep(tmp_path, results)).verdict.sentence == sentence


def test_without_pairs_the_degrees_of_freedom_are_those_of_the_smaller_group(tmp_path: Path) -> None:
    values = {"adamw": [0.95, 0.951, 0.949, 0.95], "sgd": [*[NEVER] * 4, 0.93, 0.932, 0.931]}
    lead = comparing(write_sweep(tmp_path, values)).verdict.lead
    reference = stats.ttest_ind(values["adamw"], values["sgd"][4:], equal_var=False)
    assert lead is not None
    assert (lead.num_pairs, lead.degrees) == (0, 2)
    assert lead.mean == pytest.approx(0.019)
    assert lead.error == pytest.approx(lead.mean / reference.statistic)
    assert lead.p == pytest.approx(2 * stats.t.sf(reference.statistic, 2))


def test_folds_without_pairs_are_corrected_for_shared_training_samples(tmp_path: Path) -> None:
    values = {"adamw": [0.93, 0.95, 0.94, 0.96, 0.92], "sgd": [0.90, 0.92, 0.91, 0.93, 0.91]}
    for seed, (optimizer, results) in enumerate(values.items()):
        for fold, value in enumerate(results):
            keys = {"optimizer": optimizer, "seed": seed, "folds": 5, "fold": fold}
            write_run(tmp_path / f"{optimizer}-{fold}", keys, value)
    verdict = comparing(tmp_path, by=["optimizer"]).verdict
    error = sum(stats.tvar(results) * (1 / 5 + 1 / 4) for results in values.values()) ** 0.5
    assert verdict.lead is not None
    assert (verdict.lead.num_pairs, verdict.lead.error) == (0, pytest.approx(error))
    assert stats.ttest_ind(*values.values()).pvalue < 0.05, "without the correction"
    assert verdict.status == "undecided"


def write_copies(sweep: Path, num_copies: int) -> Path:
    """Write three seeds of two optimizers, each of them several times with results that hardly differ."""
    levels = {"adamw": [0.95, 0.91, 0.93], "sgd": [0.90, 0.90, 0.89]}
    noise = np.random.default_rng(0).normal(0, 0.0005, (2, 3, num_copies))
    noise -= noise.mean(axis=2, keepdims=True)
    for n, (optimizer, values) in enumerate(levels.items()):
        for seed, value in enumerate(values):
            for copy in range(num_copies):
                keys = {"optimizer": optimizer, "micro_batch_size": 2**copy, "seed": seed}
                folder = sweep / f"{optimizer}-{seed}-{copy}"
                write_run(folder, keys, value + float(noise[n, seed, copy]))
    return sweep


def test_near_copies_of_a_seed_are_one_result(
    tmp_path: Path, open_page: Callable[..., Page], capsys: pytest.CaptureFixture[str]
) -> None:
    """In the verdict, the noise, the tables, JSON, Python, the test of a target, and the bands of the curves."""
    gaps = np.array([0.05, 0.01, 0.04])
    sweep, asked = write_copies(tmp_path / "sweep", 4), {"by": ["optimizer"], "against": "val/accuracy>=0.9"}
    comparison = comparing(sweep, **asked)
    assert comparison.verdict.sentence == (
        "Undecided: averaged over micro_batch_size, adamw leads sgd by 0.033 in val/accuracy over 3 paired seeds, but "
        "either may be better: the 95 % interval of the lead is -0.018 to 0.085. If this lead is real, about 6 fresh "
        "seeds of each would show it: the same sweep, with new seeds."
    )
    lead = comparison.verdict.lead
    assert lead is not None
    assert lead.p == pytest.approx(stats.ttest_1samp(gaps, 0).pvalue)
    noise = comparison.verdicts.noise
    assert [noise.groups[name].num for name in ("optimizer=adamw", "optimizer=sgd")] == [3, 3]
    assert noise.paired is not None
    assert noise.paired.std == pytest.approx(stats.tstd(gaps))
    assert comparison.verdicts.against is not None
    assert {test.num for test in comparison.verdicts.against.tests.values()} == {3}
    lines = to_text(comparison, None).splitlines()
    assert lines[2].startswith(
        "Each of the seeds counts once, by its mean over 4 settings of micro_batch_size"
    )
    assert sum(" 3/3 " in line for line in lines) == 2
    [adamw, _] = curves(comparison)["groups"]["val/accuracy"]
    low, high = stats.t.interval(0.95, 2, 0.93, stats.sem([0.95, 0.91, 0.93]))
    assert (adamw["n"], adamw["low"][-1], adamw["high"][-1]) == (3, approx5(low), approx5(high))
    table = hydrant.compare(sweep, **asked).groups
    assert [*table["num"]] == [3, 3]
    assert cli.main(["compare", str(sweep), "--by", "optimizer", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [group["num"] for group in record["groups"]] == [3, 3]
    assert record["verdict"]["sentence"] == comparison.verdict.sentence
    write_page(comparison, tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    expect(page.locator("#verdict p").first).to_have_text(comparison.verdict.sentence)
    expect(page.locator("#groups")).to_contain_text("n = 3")


def approx5(value: float) -> Any:
    return pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize(
    ("rates", "asked", "line"),
    [
        ({"adamw": [0.001], "sgd": [0.1]}, {},
         "Not tuned: each optimizer has one optimizer.lr (adamw 0.001, sgd 0.1), and other rates may reverse this."),
        ({"adamw": [0.1], "sgd": [0.1]}, {}, "Not tuned: each optimizer has one optimizer.lr (adamw 0.1, sgd 0.1)"),
        ({"adamw": [0.01, 0.1], "sgd": [0.01, 0.1]}, {}, "Not tuned: the optimizers are not compared at the best"),
        ({"adamw": [0.01, 0.1], "sgd": [0.1, 1.0]}, {"by": ["optimizer"]},
         "Not tuned: the optimizers are not compared at the best of their optimizer.lr (adamw 0.01 and 0.1, sgd 0.1"),
        ({"adamw": [0.01, 0.1], "sgd": [0.2, 1.0]}, {}, None),  # each rate is a setting
        ({"adamw": [0.01, 0.1], "sgd": [0.1, 1.0]}, {"by": ["optimizer"], "best_over": ["optimizer.lr"]}, None),
    ],
)  # fmt: skip
def test_the_second_line_says_that_no_learning_rate_was_tuned(
    rates: Mapping[str, Sequence[float]],
    asked: dict[str, Any],
    line: str | None,
    tmp_path: Path,
) -> None:
    for optimizer, lrs in rates.items():
        for lr, seed in itertools.product(lrs, range(3)):
            keys = {"optimizer": optimizer, "optimizer.lr": lr, "seed": seed}
            write_run(
                tmp_path / f"{optimizer}-{lr}-{seed}", keys, 0.8 + len(optimizer) / 100 + lr * seed / 100
            )
    comparison = comparing(tmp_path, **asked)
    second = to_text(comparison, None).splitlines()[1]
    assert second.startswith(line) if line else not second.startswith("Not tuned")
    for caution in (to_brief(comparison)["caution"], for_paper(comparison)[0][1]):
        assert (line or "Not tuned") in caution if line else "Not tuned" not in caution


def test_an_option_of_no_config_group_is_named_with_its_key(tmp_path: Path) -> None:
    for precision, value in (("bf16", 0.9), ("fp32", 0.8)):
        write_run(tmp_path / precision, {"precision": precision}, value)
    assert comparing(tmp_path).verdict.sentence.startswith("Undecided: precision=bf16 leads precision=fp32")


def test_runs_of_one_seed_are_one_result(tmp_path: Path) -> None:
    for scheduler in ("cosine", "wsd"):
        write_run(tmp_path / scheduler, {"optimizer": "sgd", "scheduler": scheduler, "seed": 0}, 0.5)
    start = "One setting: val/accuracy 0.5 from one seed."
    assert comparing(tmp_path, by=["optimizer"]).verdict.sentence.startswith(start)


def test_two_seeds_of_two_settings_are_too_few_to_say_how_many_are_needed(tmp_path: Path) -> None:
    """Of six settings, two seeds of each are enough for it."""
    two: Results = {"adamw": [0.91, 0.93], "sgd": [0.915, 0.905]}
    verdict = comparing(write_sweep(tmp_path / "two", two)).verdict
    assert verdict.seeds_needed is None
    assert verdict.sentence.endswith(
        ". Of so few seeds, the noise is hardly known; more need a sweep of their own."
    )
    others: Results = {f"o{n}": [0.8 + n / 100, 0.805] for n in range(4)}
    assert comparing(write_sweep(tmp_path / "six", two | others)).verdict.seeds_needed is not None


@pytest.mark.parametrize("name", SWEEPS)
def test_seeds_are_advised_where_they_decide(name: str, tmp_path: Path) -> None:
    verdict = comparing(write_sweep(tmp_path, SWEEPS[name][0])).verdict
    assert (verdict.seeds_needed is not None) == ("If this lead is real" in verdict.sentence)


def test_the_interval_of_the_lead_is_that_of_the_sentence(tmp_path: Path) -> None:
    verdict = comparing(write_sweep(tmp_path, SWEEPS["three close leaders"][0])).verdict
    assert verdict.lead is not None
    error = stats.tstd([0.01, -0.01, -0.01, 0.02]) / 2
    half = stats.t.isf(0.025 / 2, 3) * error
    assert (verdict.lead.low, verdict.lead.high) == pytest.approx((0.0025 - half, 0.0025 + half))
    assert "is -0.029 to 0.034" in verdict.sentence


@pytest.mark.parametrize(
    ("division", "keys", "variance"),
    [("fold", {"folds": 4}, 1 / 4 + 1 / 3), ("data.split_seed", {"data.val_ratio": 0.2}, 1 / 4 + 0.2 / 0.8)],
)
def test_differences_of_folds_and_of_random_splits_are_corrected_for_shared_training_samples(
    division: str, keys: dict[str, Any], variance: float, tmp_path: Path
) -> None:
    gaps = [0.010, 0.014, 0.012, 0.004]
    for part, gap in enumerate(gaps):
        for optimizer, lead in (("adamw", gap), ("sgd", 0.0)):
            of_run = {"optimizer": optimizer, **keys, division: part}
            write_run(tmp_path / f"{optimizer}-{part}", of_run, 0.9 + part / 100 + lead)
    verdict = comparing(str(tmp_path / "*"), by=["optimizer"]).verdict
    assert verdict.lead is not None
    error = stats.tstd(gaps) * variance**0.5
    assert verdict.lead.error == pytest.approx(error)
    assert verdict.lead.p == pytest.approx(2 * stats.t.sf(0.01 / error, 3))
    assert stats.ttest_1samp(gaps, 0).pvalue < 0.05, "without the correction it would be decided"
    assert division != "fold" or verdict.sentence == (
        "Undecided: adamw leads sgd by 0.01 in val/accuracy"
        " over 4 paired folds, but either may be better: the 95 % interval of the "
        "lead is -0.0005 to 0.021."
    ), "nobody can add a fold"


def test_json_python_and_csv_of_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path / "sweep", CLEAR)
    assert cli.main(["compare", "sweep", "--json", "--details"]) == 0
    record = json.loads(capsys.readouterr().out)
    found = record["verdict"]
    assert (found["status"], found["winner"]) == ("decided", "optimizer=adamw")
    assert (found["leader"], found["rival"]) == ("optimizer=adamw", "optimizer=sgd")
    assert (found["num_comparisons"], found["seeds_needed"]) == (2, None)
    assert found["lead"]["p_holm"] < 0.001
    assert record["sections"][0]["sentences"][0] == found["sentence"]
    verdict = hydrant.compare("sweep").verdict
    assert str(verdict) == verdict.sentence == found["sentence"]
    write_sweep(tmp_path / "tie", SWEEPS["a tie"][0])
    tie = hydrant.compare("tie")
    assert (tie.verdict.status, tie.verdict.winner, tie.winner) == ("undecided", None, "optimizer=adamw")
    assert tie.verdict.seeds_needed == 3166


@pytest.mark.parametrize(
    ("asked", "section", "text"),
    [
        ({"against": "val/accuracy>=0.9", "sigma": 0.001}, "against", "Against val/accuracy>=0.9"),
        ({"difference": 0.01}, "noise", "Noise floor and seeds"),
        ({"target": "val/accuracy>=0.9"}, "target", "1 of 1 runs reach val/accuracy>=0.9"),
    ],
)
def test_one_run_has_the_sections_that_an_option_asks_for(
    asked: dict[str, Any],
    section: str,
    text: str,
    tmp_path: Path,
    open_page: Callable[..., Page],
) -> None:
    comparison = comparing(write_run(tmp_path / "run", {}, 0.95), **asked)
    assert text in to_text(comparison, None)
    write_page(comparison, tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    expect(page.locator(f"#{section}")).to_contain_text(text)
    names = [shown.name for shown in sections_of(comparison)]
    assert set(names) == {"verdict", "runs", section}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_twelve_runs_fit_on_a_screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = {
        f"{name}": [0.9 + n / 100, 0.91 + n / 100, 0.902]
        for n, name in enumerate(("adamw", "lion", "muon", "sgd"))
    }
    monkeypatch.chdir(write_sweep(tmp_path / "sweep", results).parent)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert cli.main(["compare", "sweep"]) == 0
    lines = sys.stdout.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) < 40, "with the line of the next command"
    assert max(len(line.replace("\033[1m", "").replace("\033[0m", "")) for line in lines) <= 80
    assert lines[0].startswith("\033[1mUndecided: ")
    assert sum("  finished  " in line for line in lines) == 12


def test_the_groups_are_sorted_and_runs_are_details_of_many(tmp_path: Path) -> None:
    results = {
        name: [0.9 + n / 100 + seed / 1000 for seed in range(7)]
        for n, name in enumerate(("adamw", "lion", "sgd"))
    }
    comparison = comparing(write_sweep(tmp_path, results))
    text = to_text(comparison, None)
    rows = [line.split()[0] for line in text.splitlines() if "7/7" in line]
    assert rows == ["sgd", "lion", "adamw"]
    assert "  finished  " not in text
    assert "Noise floor" not in text
    assert text.splitlines()[-1].startswith("--details also shows runs, noise")
    details = to_text(comparison, None, details=True)
    assert details.count("  finished  ") == 21
    assert "Noise floor and seeds" in details


@pytest.mark.parametrize("name", ["a tie", *slow("a clear winner", "one run")])
def test_the_page_begins_with_the_verdict(name: str, tmp_path: Path, open_page: Callable[..., Page]) -> None:
    results, status, sentence = SWEEPS[name]
    write_page(comparing(write_sweep(tmp_path / "sweep", results)), tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    first = page.locator("main > section").first
    expect(first.locator("p").first).to_have_text(sentence)
    sizes = [page.eval_on_selector(tag, "e => getComputedStyle(e).fontSize") for tag in ("h1", "#verdict p")]
    assert sizes[0] == sizes[1]
    bar = first.evaluate("e => getComputedStyle(e).borderLeftWidth")
    assert bar == ("4px" if status == "decided" else "1px")
    assert (page.locator("tr.best").count() > 0) == (status == "decided")
    labels = [image.get_attribute("aria-label") or "" for image in page.get_by_role("img").all()]
    assert any("best is optimizer=adamw" in label for label in labels) == (status == "decided")
    is_compared = name != "one run"
    for part in ("#groups", "#filter", "#scatter", "#noise"):
        assert (page.locator(part).count() > 0) == is_compared, part
    expect(page.locator("#curves path.line").first).to_be_visible()
    assert ("of 1 run" in page.title()) == (not is_compared)


def test_seeds_of_a_third_group_hide_no_pairs_of_the_first_two(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, (3, 10))
    for optimizer, mean, first, row in (("adamw", 0.9, 0, 0), ("sgd", 0.903, 0, 1), ("lion", 0.5, 50, 2)):
        for n in range(10):
            folder = tmp_path / f"{optimizer}-{n}"
            write_run(folder, {"optimizer": optimizer, "seed": first + n}, mean + noise[row, n])
    verdict = comparing(str(tmp_path)).verdict
    assert "over 10 paired seeds" in verdict.sentence
    assert verdict.seeds_needed is not None
    assert "hardly known" not in verdict.sentence


def test_a_choice_between_other_quantities_decides_nothing(tmp_path: Path) -> None:
    for optimizer, final in (("adamw", 0.9), ("sgd", 0.5)):
        for smoothing in (0.0, 0.2):
            for seed in range(4):
                keys = {"optimizer": optimizer, "task.label_smoothing": smoothing, "seed": seed}
                folder = tmp_path / f"{optimizer}-{smoothing}-{seed}"
                write_run(folder, keys, final - smoothing / 10 + final * seed / 1000)
    words: dict[str, Any] = {"by": ["optimizer"], "best_over": ["task.label_smoothing"]}
    found = comparing(str(tmp_path), metric="val/loss", **words).verdict
    assert found.sentence.startswith("Undecided: val/loss is another quantity with each task.label_smoothing")
    assert comparing(str(tmp_path), metric="val/accuracy", **words).verdict.status == "decided"


@pytest.mark.parametrize("key", ["task.label_smoothing", "task.loss"])
def test_losses_that_are_other_quantities_decide_nothing(key: str, tmp_path: Path) -> None:
    for value, final in (("one", 0.9), ("two", 0.5)):
        for seed in range(3):
            write_run(tmp_path / f"{value}-{seed}", {key: value, "seed": seed}, final + final * seed / 1000)
    found = comparing(str(tmp_path), metric="val/loss")
    assert found.verdict.status == "undecided"
    assert found.verdict.sentence == (
        f"Undecided: val/loss is another quantity with each {key}, so it does not say which is better. "
        "Compare what all runs measure: --metric val/accuracy."
    )
    assert (found.verdict.winner, found.verdict.lead) == (None, None)
    assert f"the definition of val/loss differs: {key}=one (3 of 6 runs); {key}=two" in found.warnings[0].text
    assert comparing(str(tmp_path), metric="val/accuracy").verdict.status == "decided"


@pytest.mark.parametrize(("key", "is_part"), [("task.share", False), ("task.label_smoothing", True)])
def test_the_weights_of_a_sum_define_none_of_its_parts(key: str, is_part: bool) -> None:
    configs = [{key: 0.1}, {key: 0.9}]
    assert differing_definitions("val/loss", configs) == [key]
    assert differing_definitions("val/cross_entropy", configs) == [key] * is_part


@pytest.mark.parametrize(
    ("key", "metrics"),
    [
        ("data.standardize_targets", {"loss", "mae", "mse", "own"}),
        ("task.ignore_index", {"loss", "accuracy"}),
        ("task.multi_label", {"loss", "accuracy"}),
        ("task.label_smoothing", {"loss"}),
    ],
)
def test_the_unit_and_the_choice_of_targets_define_metrics_too(key: str, metrics: set[str]) -> None:
    configs = [{key: 1}, {key: 2}]
    names = ("loss", "mae", "mse", "own", "r2", "accuracy")
    assert {name for name in names if differing_definitions(f"val/{name}", configs)} == metrics


@pytest.mark.parametrize(
    ("metric", "one", "other", "differing"),
    [
        ("val/loss", {"task.share": 0.1}, {"task.share": "1e-1"}, []),
        ("val/loss", {"task.share": 1}, {"task.share": 1.0}, []),
        ("val/loss", {"task.class_weights": [1, 2.0]}, {"task.class_weights": [1.0, 2]}, []),
        ("val/loss", {"task.multi_label": True}, {"task.multi_label": False}, ["task.multi_label"]),
        ("val/loss", {"task.loss": "mse", "task.delta": 1.0}, {"task.loss": "mse", "task.delta": 2.0}, []),
        ("val/loss", {"task.loss": "huber", "task.delta": 1}, {"task.loss": "huber", "task.delta": 2}, ["task.delta"]),
        ("val/distillation", {"task.temperature": 1, "task.loss": "kl"}, {"task.temperature": 2, "task.loss": "kl"},
         ["task.temperature"]),
        ("val/loss", {"task": "own", "task.delta": 0.1}, {"task": "own", "task.delta": 0.5}, ["task.delta"]),
        ("val/distillation", {"task.share": 0.1}, {"task.share": 0.9}, []),
        ("val/z_loss", {"task.z_loss": 1e-4}, {"task.z_loss": 1e-3}, ["task.z_loss"]),
        ("val/generator", {"task": "gan"}, {"task": "own"}, ["task"]),
    ],
)  # fmt: skip
def test_values_define_a_loss_if_it_uses_them(
    metric: str, one: Mapping[str, Any], other: Mapping[str, Any], differing: Sequence[str]
) -> None:
    assert differing_definitions(metric, [one, other]) == differing


def test_losses_of_one_definition_are_compared(tmp_path: Path) -> None:
    """Keys of the optimizer, and a key of the task that an earlier version did not have, change no definition."""
    for value, final in (("adamw", 0.9), ("sgd", 0.5)):
        for seed in range(3):
            added = {"task.label_smoothing": 0.0} if value == "sgd" else {}
            write_run(
                tmp_path / f"{value}-{seed}",
                {"optimizer": value, "seed": seed, **added},
                final + final * seed / 1000,
            )
    assert comparing(str(tmp_path), metric="val/loss").verdict.status == "decided"
