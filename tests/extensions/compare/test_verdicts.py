"""The verdicts of `hydrant compare`: which runs they use, what they say, and what they refuse to say."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import MEANS, comparing, expected_results, write_run
from scipy import stats

import hydrant
from hydrant import cli
from hydrant.errors import ConfigError
from hydrant.extensions.compare import comparison
from hydrant.extensions.compare.comparison import Verdicts
from hydrant.extensions.compare.serialize import to_text
from hydrant.extensions.compare.sources import Question, read_runs
from hydrant.extensions.compare.statistics import seeds_needed

Judge = Callable[..., Verdicts]

RATES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
BEST = {"adamw": -2.0, "sgd": -1.0}
"""The log10 of the best learning rate of each optimizer."""


@pytest.fixture(scope="module")
def judge() -> Judge:
    def run(*words: Path | str, **asked: Any) -> Verdicts:
        return comparison.compare(read_runs([str(word) for word in words]), Question(**asked)).verdicts

    return run


def accuracy(optimizer: str, lr: float) -> float:
    return 0.95 - 0.05 * (math.log10(lr) - BEST[optimizer]) ** 2


@pytest.fixture(scope="module")
def rates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two optimizers at five learning rates with three seeds; sgd diverges at the largest, and adamw with one seed."""
    sweep, noise = tmp_path_factory.mktemp("rates") / "sweep", np.random.default_rng(0)
    for optimizer in BEST:
        for lr in RATES:
            for seed in range(3):
                final = accuracy(optimizer, lr) + float(noise.normal(0, 0.002))
                has_failed = lr == 1.0 and (optimizer == "sgd" or seed == 1)
                overrides = {"optimizer": optimizer, "optimizer.lr": lr, "seed": seed}
                status = {"status": "failed"} if has_failed else {}
                write_run(
                    sweep / f"{optimizer}-{lr}-{seed}", overrides, None if has_failed else final, **status
                )
    return sweep


def test_the_noise_is_that_of_the_groups(planted: Path, judge: Judge) -> None:
    noise = judge(planted).noise
    samples = [list(expected_results(cell).values()) for cell in MEANS]
    for (optimizer, scheduler), sample in zip(MEANS, samples, strict=True):
        found = noise.groups[f"optimizer={optimizer} scheduler={scheduler}"]
        assert found.std == pytest.approx(stats.tstd(sample), rel=1e-12)
    degrees = sum(len(sample) - 1 for sample in samples)
    squares = sum((len(sample) - 1) * np.var(sample, ddof=1) for sample in samples)
    assert noise.pooled.std == pytest.approx((squares / degrees) ** 0.5, rel=1e-12)
    assert noise.bartlett_p == pytest.approx(stats.bartlett(*samples).pvalue)


def test_pairs_need_fewer_seeds_where_the_seed_moves_both(tmp_path: Path, judge: Judge) -> None:
    shared = np.random.default_rng(0).normal(0, 0.02, 6)
    own = np.random.default_rng(1).normal(0, 0.002, (2, 6))
    for n, optimizer in enumerate(("adamw", "sgd")):
        for seed in range(6):
            final = 0.9 + 0.01 * n + float(shared[seed] + own[n, seed])
            write_run(tmp_path / f"{optimizer}-{seed}", {"optimizer": optimizer, "seed": seed}, final)
    noise = judge(tmp_path, difference=0.01).noise
    gaps = (own[0] - own[1] - 0.01).round(12)
    assert noise.paired is not None
    assert noise.paired.std == pytest.approx(stats.tstd(gaps), rel=1e-4)
    asked = noise.needs[0]
    assert (asked.about, asked.difference) == ("--difference", 0.01)
    assert asked.paired is not None
    assert noise.unpaired.std is not None
    assert noise.paired.std is not None
    assert asked.paired.needed == seeds_needed(0.01, noise.paired.std)
    assert asked.unpaired.needed == seeds_needed(0.01, 2**0.5 * noise.unpaired.std)
    assert asked.paired.needed < 6 < (asked.unpaired.needed or 0)
    assert asked.paired.low <= asked.paired.needed <= asked.paired.high  # type: ignore[operator]


def test_groups_that_scatter_differently_are_not_pooled_for_the_seeds(tmp_path: Path, judge: Judge) -> None:
    noise = np.random.default_rng(0)
    for optimizer, mean, scatter in (("adamw", 0.95, 0.001), ("sgd", 0.93, 0.001), ("lion", 0.5, 0.1)):
        for seed in range(6):
            write_run(
                tmp_path / f"{optimizer}-{seed}",
                {"optimizer": optimizer, "seed": seed},
                mean + float(noise.normal(0, scatter)),
            )
    found = judge(tmp_path).noise
    assert found.compared == ["optimizer=adamw", "optimizer=sgd"]
    assert found.unpaired.std is not None
    assert found.unpaired.std < 0.01 < (found.pooled.std or 0)
    assert "The groups scatter differently" in found.sentences[1]


@pytest.mark.parametrize(
    ("last", "words"), [(0.9, "group, so"), (0.90000001, "group, but for the rounding of float32")]
)
def test_equal_results_show_no_noise(last: float, words: str, tmp_path: Path, judge: Judge) -> None:
    for seed, value in enumerate((0.9, 0.9, last)):
        write_run(tmp_path / f"{seed}", {"optimizer": "adamw", "seed": seed}, value)
    assert words in judge(tmp_path).noise.sentences[0]


def test_one_seed_says_that_the_noise_is_unknown(tmp_path: Path, judge: Judge) -> None:
    for optimizer in ("adamw", "sgd"):
        write_run(tmp_path / optimizer, {"optimizer": optimizer, "seed": 0}, 0.9)
    noise = judge(tmp_path).noise
    assert (noise.pooled.std, noise.needs, noise.paired) == (None, [], None)
    assert noise.sentences[0].startswith("The noise of val/accuracy is unknown")


def test_the_target_is_tested_for_each_group(planted: Path, judge: Judge) -> None:
    verdict = judge(planted, against="val/loss<=0.06").against
    assert verdict is not None
    for cell in MEANS:
        losses = [1 - value for value in expected_results(cell).values()]
        test = verdict.tests[f"optimizer={cell[0]} scheduler={cell[1]}"]
        assert test.p == pytest.approx(stats.ttest_1samp(losses, 0.06, alternative="less").pvalue, rel=1e-6)
    assert set(verdict.passed) == {"optimizer=adamw scheduler=cosine", "optimizer=lion scheduler=wsd"}
    text = " ".join(verdict.sentences)
    assert "reach val/loss<=0.06: the true mean is better" in text
    assert "Not shown for 2 of 4 groups; closest is optimizer=adamw scheduler=wsd" in text
    assert "This does not show that a group misses the target" in text
    assert "The means leave out runs without a result, in optimizer=lion scheduler=wsd, optimizer=sgd" in text


def test_the_rule_of_track_3(tmp_path: Path, judge: Judge) -> None:
    for seed, loss in enumerate((3.2771, 3.2774, 3.2768)):
        write_run(tmp_path / str(seed), {"seed": seed}, 1 - loss)
    passed = judge(
        tmp_path, metric="val/loss", against="val/loss<=3.28", sigma=0.0013, critical=0.004
    ).against
    assert passed is not None
    assert passed.passed == ["all runs"]
    statistic = passed.tests["all runs"].statistic
    assert statistic == pytest.approx((3.28 - 3.2771) * 3**0.5)
    assert "margin * sqrt(n) = 0.005023 >= 0.004, n = 3; the rule is a one-sided z" in passed.sentences[0]
    assert "at 0.001" in passed.sentences[0]
    missed = judge(
        tmp_path, metric="val/loss", against="val/loss<=3.279", sigma=0.0013, critical=0.004
    ).against
    assert missed is not None
    assert missed.passed == []


def test_basins_surround_the_best_learning_rates(rates: Path, judge: Judge) -> None:
    found = judge(rates, tolerance=0.05).sensitivity
    assert found is not None
    assert found.at_end == []
    for line in found.lines:
        optimizer = line.name.partition("=")[2]
        assert line.basin is not None
        assert line.basin.best_lr == pytest.approx(10 ** BEST[optimizer])
        assert line.basin.low == pytest.approx(10 ** (BEST[optimizer] - 1), rel=0.15)
        assert not line.basin.is_high_open
    adamw, sgd = sorted(found.lines, key=lambda line: line.name)
    assert (adamw.failed[-1], sgd.failed[-1], sgd.means[-1]) == (1, 3, None)
    assert sgd.basin is not None
    assert sgd.basin.high == 0.1, "it ends where it diverges"
    by_noise = judge(rates, by=["optimizer"]).sensitivity
    assert by_noise is not None
    assert by_noise.tolerance is not None
    assert by_noise.tolerance < 0.01, "whatever --by is"


def test_without_noise_a_tolerance_is_needed(tmp_path: Path, judge: Judge) -> None:
    for lr in RATES[:3]:
        write_run(tmp_path / str(lr), {"optimizer.lr": lr, "seed": 0}, accuracy("adamw", lr))
    assert "largest tried: 0.01 of all runs. Try further" in to_text(comparing(tmp_path, by=[]), None)
    found = judge(tmp_path).sensitivity
    assert found is not None
    assert (found.tolerance, [line.basin for line in found.lines]) == (None, [None])
    assert "give" not in found.sentences[0]
    assert "--tolerance" in found.sentences[0]
    assert judge(tmp_path, tolerance=0.01).sensitivity.lines[0].basin is not None  # type: ignore[union-attr]


def test_methods_are_tuned_with_the_same_number_of_trials(rates: Path, tmp_path: Path, judge: Judge) -> None:
    for lr in (3e-4, 3e-3):
        for seed in range(3):
            overrides = {"optimizer": "sgd", "optimizer.lr": lr, "seed": seed}
            write_run(tmp_path / f"{lr}-{seed}", overrides, accuracy("sgd", lr))
    found = judge(rates, tmp_path).tuning
    assert found is not None
    assert (found.tuned, found.budget) == (["optimizer.lr"], 5)
    trials = {method.name: (method.num_trials, method.num_failed) for method in found.methods}
    assert trials == {"optimizer=adamw": (5, 1), "optimizer=sgd": (7, 1)}
    assert {len(method.curve.expected) for method in found.methods} == {5}
    text = " ".join(found.sentences)
    assert "The methods have 5 to 7 trials; all curves end at 5" in text
    assert "2 trials failed or diverged" in text
    assert "The methods were tried on different values" in text
    assert judge(rates, tuned=["optimizer"]).tuning is None, "two trials say too little"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"sigma": -1.0, "against": "val/loss<=1"}, "--sigma: needs a number above 0, not -1"),
        ({"sigma": 1.0}, "--sigma: needs --against too"),
        ({"critical": 1.0, "against": "val/loss<=1"}, "--critical: needs --sigma too"),
        ({"tolerance": math.nan}, "--tolerance: needs a number above 0"),
        ({"difference": 0.0}, "--difference: needs a number above 0, not 0.0"),
        ({"tuned": ["optimiser"]}, "--tuned: unknown key 'optimiser'; did you mean 'optimizer'"),
        ({"against": "val/los<=1"}, "--against: unknown metric 'val/los'"),
    ],
)
def test_an_impossible_question_is_refused(
    asked: dict[str, Any], message: str, rates: Path, judge: Judge
) -> None:
    with pytest.raises(ConfigError, match=message):
        judge(rates, **asked)


@pytest.fixture
def printed(rates: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.chdir(rates.parent)
    words = ["--details", "--against", "val/accuracy>=0.9", "--difference", "0.001"]
    assert cli.main(["compare", "sweep", *words]) == 0
    return capsys.readouterr().out


def test_the_text_shows_all_verdicts_in_tables_of_80_columns(printed: str) -> None:
    titles = (
        "Noise floor and seeds",
        "Against val/accuracy>=0.9:",
        "Sensitivity to the learning rate:",
        "Tuning under",
    )
    places = [printed.index(title) for title in titles]
    assert places == sorted(places)
    tables = printed[places[0] :].splitlines()
    rows = [line for line in tables if "  " in line]
    assert len(rows) > 30
    assert max(map(len, rows)) <= 100
    short = printed[places[2] :].splitlines()
    assert max(len(line) for line in short if "  " in line) <= 80


def test_python_has_the_sentences_and_the_noise_of_each_group(rates: Path, judge: Judge) -> None:
    compared = hydrant.compare(rates, against="val/accuracy>=0.9", tuned=["optimizer.lr"])
    verdicts = judge(rates, against="val/accuracy>=0.9")
    assert list(compared.verdicts) == ["noise", "against", "sensitivity", "tuning"]
    assert compared.verdicts["noise"] == verdicts.noise.sentences
    for name, spread in verdicts.noise.groups.items():
        row = compared.groups.loc[name]
        shown = [None if math.isnan(row[key]) else row[key] for key in ("std", "std_low", "std_high")]
        assert shown == pytest.approx([spread.std, spread.low, spread.high])
