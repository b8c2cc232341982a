"""Groups of runs by the keys in which they differ, and what a run is."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from planted import INCOMPLETE, comparing, expected_results, group_of, warning_texts, write_run

from hydrant.clock import Steps
from hydrant.config.flat import key_tables
from hydrant.config.groups import INTERVALS
from hydrant.config.metric_keys import parse_target
from hydrant.errors import ConfigError
from hydrant.extensions.compare.comparison import _budget
from hydrant.extensions.compare.ranking import time_to_target
from hydrant.extensions.compare.run import Run, Series, differing_keys, flat_with_added_keys
from hydrant.extensions.compare.serialize import for_paper, to_text
from hydrant.extensions.compare.sources import read_runs


def test_the_winner_is_the_best_complete_group(planted: Path) -> None:
    comparison = comparing(planted)
    assert comparison.winner is group_of(comparison, "adamw", "cosine")
    incomplete = group_of(comparison, *INCOMPLETE)
    assert incomplete.estimate.mean is not None
    assert incomplete.estimate.mean > max(expected_results(("adamw", "cosine")).values())
    assert (incomplete.without_result, incomplete.states) == ({"failed": 2}, {"finished": 3, "failed": 2})
    assert comparing(planted, metric="val/loss").winner is not None
    assert comparing(planted, metric="val/loss").winner.name == comparison.winner.name  # type: ignore[union-attr]
    least = comparing(planted, mode="min").winner
    assert least is not None
    assert least.name == "optimizer=adamw scheduler=wsd", "a run of optimizer=sgd is missing"


@pytest.mark.parametrize("status", ["running", "preempted", "failed", "absent"])
def test_a_group_with_lost_runs_does_not_win(status: str, tmp_path: Path) -> None:
    """Of three runs of sgd, only one has a result, which is the best of all. "running" without a process: killed."""
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", {"optimizer": "adamw", "seed": seed}, 0.95 + seed / 1000)
        if status != "absent" or seed == 0:
            final = {"final": 0.97} if seed == 0 else {"final": 0.1, "status": status}
            write_run(tmp_path / f"b{seed}", {"optimizer": "sgd", "seed": seed}, **final)
    comparison = comparing(tmp_path)
    assert comparison.winner is comparison.baseline is comparison.groups[0]
    word = {"running": "killed", "absent": "missing"}.get(status, status)
    assert comparison.groups[1].shortfall == f"2 of its 3 runs have no result (2 {word})"


def test_without_a_complete_group_an_incomplete_one_wins(tmp_path: Path) -> None:
    write_run(tmp_path / "a0", {"optimizer": "adamw", "seed": 0}, 0.9)
    write_run(tmp_path / "a1", {"optimizer": "adamw", "seed": 1}, None, status="failed")
    write_run(tmp_path / "b0", {"optimizer": "sgd", "seed": 0}, None, status="failed")
    comparison = comparing(tmp_path)
    assert comparison.winner is not None
    assert comparison.winner.name == "optimizer=adamw"
    assert to_text(comparison, None).startswith("Undecided: only adamw has results")


def test_a_metric_whose_name_says_nothing_needs_a_mode(tmp_path: Path) -> None:
    """Of which the worst value would win if it were taken to be better when larger."""
    for lr, value in ((0.001, 0.5), (0.01, 0.25)):
        best = {"best": {"metric": "val/accuracy_drop", "mode": "min"}}
        run = write_run(tmp_path / f"{lr}", {"optimizer.lr": lr, **best}, 0.9)
        metrics = dict.fromkeys(("val/brier", "perf/mfu", "val/accuracy_drop", "test/accuracy_drop"), value)
        rows = [{"num_updates": 2900, "epoch": 29, "time": 1.7e9, **metrics}]
        with (run / "metrics.jsonl").open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    message = r"^--mode: nothing says whether a higher or a lower val/brier is better"
    with pytest.raises(ConfigError, match=message):
        comparing(tmp_path, metric="val/brier")
    expected = {("val/brier", "min"): "0.01", ("val/brier", "max"): "0.001", ("perf/mfu", None): "0.001",
                ("test/accuracy_drop", None): "0.01"}  # fmt: skip
    for (metric, mode), lr in expected.items():
        winner = comparing(tmp_path, metric=metric, mode=mode).winner
        assert winner is not None
        assert winner.name == f"optimizer.lr={lr}"


def test_averages_are_compared_with_the_weights_of_runs_without_them(tmp_path: Path) -> None:
    for seed, result in enumerate((0.8, 0.82, 0.81)):
        write_run(tmp_path / f"none-{seed}", {"averaging": "none", "seed": seed}, result)
        run = write_run(tmp_path / f"ema-{seed}", {"averaging": "ema", "seed": seed}, result)
        rows = run / "metrics.jsonl"
        average = f'"val_ema/accuracy": {result + 0.05 + seed / 1000}, "val/accuracy": '
        rows.write_text(rows.read_text().replace('"val/accuracy": ', average))
    start = "Decided: averaging=ema is better than averaging=none by 0.051 in val_ema/accuracy (3 paired"
    assert comparing(tmp_path).verdict.sentence.startswith(start)


def test_a_baseline_may_write_a_number_differently(tmp_path: Path) -> None:
    for lr in (0.001, 0.01):
        write_run(tmp_path / f"{lr}", {"optimizer.lr": lr}, 0.9 + lr)
    baseline = comparing(tmp_path, baseline="optimizer.lr=1e-3").baseline
    assert baseline is not None
    assert baseline.name == "optimizer.lr=0.001"


def test_seeds_of_the_other_groups_are_missing(tmp_path: Path) -> None:
    for optimizer, seeds in {"adamw": 3, "sgd": 3, "lion": 2}.items():
        for seed in range(seeds):
            write_run(
                tmp_path / f"{optimizer}-{seed}", {"optimizer": optimizer, "seed": seed}, 0.9 + seed / 100
            )
    comparison = comparing(tmp_path)
    assert [(group.estimate.num, group.num_runs) for group in comparison.groups] == [(3, 3), (2, 3), (3, 3)]
    assert warning_texts(comparison) == "no run with seed 2 in optimizer=lion"


Cells = Mapping[str, Sequence[str]]
"""The runs of each optimizer as `precision seed`, such as `fp32 0`; the results differ with all three."""

VALUES = {"adamw": 0.5, "sgd": 0.25, "lion": 0.125, "fp32": 0.05, "bf16": 0.01, "fp16": 0.02}


def write_cells(sweep: Path, cells: Cells) -> Path:
    for optimizer, words in cells.items():
        for word in words:
            precision, seed = word.split()
            keys = {"optimizer": optimizer, "precision": precision, "seed": int(seed)}
            write_run(sweep / f"{optimizer}-{word}", keys, result_of(optimizer, precision, seed))
    return sweep


def result_of(optimizer: str, precision: str, seed: str) -> float:
    return VALUES[optimizer] + VALUES[precision] + VALUES[optimizer] * int(seed) / 100


FULL = ["fp32 0", "fp32 1", "bf16 0", "bf16 1"]


@pytest.mark.parametrize(
    ("cells", "counted", "warning"),
    [
        # The cells that all groups have, of the seeds that have all of them, whatever each group has beside it.
        ({"adamw": FULL, "sgd": FULL}, {"adamw": FULL, "sgd": FULL}, ""),
        ({"adamw": FULL, "sgd": ["fp32 0", "fp32 1", "fp16 0", "fp16 1"]},
         {"adamw": ["fp32 0", "fp32 1"], "sgd": ["fp32 0", "fp32 1"]},
         "not in the means, which take what all groups and seeds have: precision=bf16; precision=fp16"),
        ({"adamw": [*FULL, "fp32 2"], "sgd": FULL},
         {"adamw": FULL, "sgd": FULL}, "all groups and seeds have: seed 2"),
        # Fewer than two seeds have all cells: the cell that all seeds have.
        ({"adamw": FULL, "sgd": FULL[:3]},
         {"adamw": ["fp32 0", "fp32 1"], "sgd": ["fp32 0", "fp32 1"]}, "all groups and seeds have: precision=bf16"),
        ({"adamw": FULL, "sgd": ["fp32 5", "fp32 6", "bf16 5", "bf16 6"]},
         {"adamw": FULL, "sgd": ["fp32 5", "fp32 6", "bf16 5", "bf16 6"]}, ""),
        # No cell has all seeds: the seed that has all of them.
        ({"adamw": ["fp32 0", "fp32 1", "bf16 1", "bf16 2"], "sgd": ["fp32 1", "fp32 2", "bf16 0", "bf16 1"]},
         {"adamw": ["fp32 1", "bf16 1"], "sgd": ["fp32 1", "bf16 1"]},
         "which take what all groups and seeds have: seed 2; seed 0"),
        # No common cell.
        ({"adamw": [*FULL, "bf16 2"], "sgd": ["fp16 0", "fp16 1"]},
         {"adamw": ["bf16 0", "bf16 1", "bf16 2"], "sgd": ["fp16 0", "fp16 1"]},
         "the groups share no setting of precision, so the result of each is its mean over settings of its own"),
        ({"adamw": ["fp32 0", "bf16 1"], "sgd": ["fp16 0", "fp16 1"]},
         {"adamw": ["fp32 0", "bf16 1"], "sgd": ["fp16 0", "fp16 1"]}, "the groups share no setting"),
    ],
)  # fmt: skip
def test_each_seed_counts_once_by_its_mean_over_a_balanced_part(
    cells: Cells, counted: Cells, warning: str, tmp_path: Path
) -> None:
    comparison = comparing(write_cells(tmp_path, cells), by=["optimizer"])
    for group in comparison.groups:
        optimizer = group.labels["optimizer"]
        words = [word.split() for word in counted[optimizer]]
        expected = {
            seed: np.mean([result_of(optimizer, precision, s) for precision, s in words if s == seed])
            for seed in dict.fromkeys(seed for _, seed in words)
        }
        assert dict(group.results) == pytest.approx(expected)
        assert group.estimate.num == len(expected)
    texts = [w.text for w in comparison.warnings if w.about == "groups"]
    assert any(warning in text for text in texts) if warning else texts == []


def test_seeds_of_the_data_and_of_its_splits_are_repetitions(tmp_path: Path) -> None:
    for key in ("data.split_seed", "data.samples_seed"):
        for n, (optimizer, number) in enumerate(itertools.product(("adamw", "sgd"), range(3))):
            keys = {"optimizer": optimizer, key: number, "seed": 0}
            write_run(tmp_path / key / f"{n}", keys, 0.9 + number / 10 - (optimizer == "sgd") / 20)
        comparison = comparing(tmp_path / key)
        assert [(g.name, g.estimate.num) for g in comparison.groups] == [
            ("optimizer=adamw", 3), ("optimizer=sgd", 3)
        ]  # fmt: skip
        assert comparison.warnings == [], "other samples are no unfair comparison if both groups have them"
        assert comparison.terms.repetitions == f"{key.removeprefix('data.').replace('_', ' ')}s"


def test_runs_are_paired_by_seed_if_each_group_has_a_learning_rate_of_its_own(tmp_path: Path) -> None:
    for optimizer, lr, final in (("adamw", 0.001, 0.9), ("sgd", 0.1, 0.8)):
        for seed in range(3):
            keys = {"optimizer": optimizer, "optimizer.lr": lr, "seed": seed}
            write_run(
                tmp_path / f"{optimizer}-{seed}", keys, final + seed / 100 + (seed == 2) / 1000 * (lr < 1e-2)
            )
    comparison = comparing(tmp_path, by=["optimizer"])
    [worse] = [group.versus for group in comparison.groups if group.versus is not None]
    assert (worse.num_pairs, worse.mean) == (3, pytest.approx(-0.1 - 0.001 / 3))


def test_settings_that_come_with_an_option_are_named(tmp_path: Path) -> None:
    for optimizer, decay, lr in (("adamw", 0.01, 1e-3), ("sgd", 0.1, 0.1), ("lion", 0.1, 0.1)):
        for seed in range(2):
            run = write_run(tmp_path / f"{optimizer}-{seed}", {"optimizer": optimizer, "seed": seed}, 0.9)
            config = yaml.safe_load((run / "config.yaml").read_text())
            config["optimizer"] |= {
                "lr": lr,
                "weight_decay": decay,
                **({"momentum": 0.9} if optimizer == "sgd" else {}),
            }
            config["tracker"]["group"] = optimizer
            (run / "config.yaml").write_text(yaml.safe_dump(config))
    text = to_text(comparing(tmp_path), None)
    line = "The groups also differ in optimizer.lr (0.001, 0.1), optimizer.weight_decay (0.01, 0.1)."
    assert line in text.splitlines(), (
        "neither a key that one optimizer alone has, nor one that changes no result"
    )
    asked = to_text(comparing(tmp_path, by=["optimizer", "optimizer.weight_decay"]), None)
    assert "The groups also differ in optimizer.lr (0.001, 0.1)." in asked
    assert line in for_paper(comparing(tmp_path))[0][1]


def test_the_best_value_excludes_the_untrained_model(tmp_path: Path) -> None:
    write_run(tmp_path / "worse", {}, None, values=[0.5, 0.3, 0.2])
    comparison = comparing(tmp_path)
    assert comparison.metric.best_of(comparison.runs[0]) == 0.3


def test_runs_are_paired_by_division_and_fold_and_by_wrong_labels(tmp_path: Path) -> None:
    """Other wrong labels repeat an experiment as other seeds do."""
    places = itertools.product(range(2), range(3))
    folds = [{"folds": 3, "fold_seed": division, "fold": fold} for division, fold in places]
    labels = [{"label_noise": 0.1, "label_noise_seed": noise, "seed": 0} for noise in range(3)]
    for name, repeated in (("folds", folds), ("labels", labels)):
        for n, (optimizer, keys) in enumerate(itertools.product(("adamw", "sgd"), repeated)):
            result = 0.5 + n % len(repeated) / 10 - (optimizer == "sgd") * (5 + n % 3) / 100
            write_run(tmp_path / name / f"{n}", {"optimizer": optimizer, **keys}, result)
        comparison = comparing(tmp_path / name)
        assert [group.name for group in comparison.groups] == ["optimizer=adamw", "optimizer=sgd"]
        versus = comparison.groups[1].versus
        assert versus is not None
        assert (versus.num_pairs, versus.mean) == (len(repeated), pytest.approx(-0.06))
        assert comparison.warnings == []


def test_seeds_that_are_crossed_with_wrong_labels_count_as_the_fewer_ones(tmp_path: Path) -> None:
    levels = np.random.default_rng(0).normal(0, 0.01, (2, 3, 2))
    for optimizer, seed, noise in np.ndindex(*levels.shape):
        name = ("adamw", "sgd")[optimizer]
        keys = {"optimizer": name, "label_noise": 0.1, "label_noise_seed": noise, "seed": seed}
        write_run(tmp_path / f"{optimizer}{seed}{noise}", keys, float(0.9 + levels[optimizer, seed, noise]))
    comparison = comparing(tmp_path)
    assert [(g.estimate.num, g.num_seeds, len(g.results)) for g in comparison.groups] == [(2, 2, 6)] * 2
    assert [g.estimate.mean for g in comparison.groups] == pytest.approx(0.9 + levels.mean(axis=(1, 2)))
    lead, text = comparison.verdict.lead, to_text(comparison, None)
    assert lead is not None
    assert (lead.num_pairs, lead.degrees) == (2, 1)
    assert "over 2 paired repetitions" in text
    assert "are crossed, so 6 results of a group are 2 independent ones" in text


@pytest.mark.parametrize("key", ["label_noise_seed", "fold_seed", "fold"])
def test_repetitions_without_effect_are_copies(key: str, tmp_path: Path) -> None:
    """Without wrong labels and folds, two pairs of seeds would count as six."""
    for number, (optimizer, copy, seed) in enumerate(itertools.product(("adamw", "sgd"), range(3), (0, 1))):
        keys = {"optimizer": optimizer, "label_noise": 0.0, "folds": None, key: copy, "seed": seed}
        write_run(tmp_path / f"{number}", keys, 0.9 + seed / 10 - (optimizer == "sgd") * (5 + seed) / 100)
    comparison = comparing(tmp_path)
    versus = comparison.groups[1].versus
    assert versus is not None
    assert [group.num_runs for group in comparison.groups] == [2, 2]
    assert (versus.num_pairs, versus.mean) == (2, pytest.approx(-0.055))
    assert [warning.about for warning in comparison.warnings] == ["repeats"]


@pytest.mark.parametrize(
    ("key", "needed"), [("label_noise_seed", "label_noise"), ("fold_seed", "folds"), ("fold", "folds")]
)
def test_a_repetition_makes_groups_of_the_runs_that_it_changes(key: str, needed: str, tmp_path: Path) -> None:
    """The others are one group."""
    for seed in range(2):
        write_run(tmp_path / f"right-{seed}", {"optimizer": "sgd", needed: None, key: 0, "seed": seed}, 0.8)
    assert [group.name for group in comparing(*tmp_path.iterdir(), by=[key]).groups] == [f"{key}=-"]
    for value, seed in itertools.product(range(2), range(2)):
        keys = {"optimizer": "sgd", needed: 3, key: value, "seed": seed}
        write_run(tmp_path / f"other-{value}-{seed}", keys, 0.9)
    groups = comparing(*tmp_path.iterdir(), by=[key]).groups
    assert [group.name for group in groups] == [f"{key}=-", f"{key}=0", f"{key}=1"]


def test_runs_without_wrong_labels_lack_no_seed_of_these(tmp_path: Path) -> None:
    for number, (noise, noise_seed, seed) in enumerate(itertools.product((0.0, 0.1), range(3), (0, 1))):
        keys = {"label_noise": noise, "label_noise_seed": noise_seed, "seed": seed}
        write_run(tmp_path / f"{number}", keys, 0.9 - noise * (1 + noise_seed) + seed / 50)
    comparison = comparing(*tmp_path.iterdir())
    assert [(g.num_runs, list(g.missing_repetitions)) for g in comparison.groups] == [(2, []), (6, [])]


def test_a_cross_validation_is_grouped_over_its_folds(tmp_path: Path) -> None:
    for optimizer, num_folds in {"adamw": 3, "sgd": 3, "lion": 2}.items():
        for fold in range(num_folds):
            overrides = {"optimizer": optimizer, "folds": 3, "fold": fold}
            write_run(
                tmp_path / f"{optimizer}-{fold}", overrides, 0.9 + fold / 100 - (optimizer == "sgd") / 10
            )
    comparison = comparing(tmp_path)
    names = ["optimizer=adamw", "optimizer=lion", "optimizer=sgd"]
    assert [group.name for group in comparison.groups] == names
    assert comparison.winner is comparison.groups[0]
    assert [group.missing_repetitions for group in comparison.groups] == [[], ["seed 0 fold 2"], []]
    worse = comparison.groups[2].versus
    assert worse is not None
    assert (worse.num_pairs, worse.mean) == (3, pytest.approx(-0.1)), "paired by fold"
    text = to_text(comparison, None)
    assert "0.8852 to 0.9348" in text
    assert "Folds share training samples" in text
    assert [group.name for group in comparing(tmp_path, by=["fold"]).groups] == ["fold=0", "fold=1", "fold=2"]


GROWING = {"global_batch_size.0": 64, "global_batch_size.100": 128}


def run(config: Mapping[str, Any]) -> Run:
    series = {"val/loss": Series(np.array([0.0, 150.0]), np.array([1.0, 0.1]))}
    return Run("one", "finished", config, {}, {"total_updates": 150}, series)


@pytest.mark.parametrize(
    ("config", "sizes", "budget", "samples"),
    [
        ({"global_batch_size": 64}, Steps.constant(64), "9,600 samples", 9600),
        (GROWING, Steps((0, 100), (64, 128)), "12,800 samples", 12800),
        (GROWING | {"duration": "5min"}, Steps((0, 100), (64, 128)), "5min of training", 12800),
        ({"global_batch_size.0": 64, "global_batch_size.1ep": 128}, None, "unknown", math.nan),
        ({"global_batch_size": "64"}, None, "unknown", math.nan),
        ({"duration": "often"}, None, "unknown", math.nan),
    ],
)
def test_samples_are_those_of_every_update(
    config: Mapping[str, Any], sizes: Steps[int] | None, budget: str, samples: float
) -> None:
    one = run(config)
    assert one.batch_sizes == sizes
    assert _budget(one) == budget
    reached = time_to_target(one, parse_target("val/loss<=0.5", "--target"))["samples"]
    assert reached == pytest.approx(samples, nan_ok=True)


def test_keys_that_another_key_determines_are_left_out(tmp_path: Path) -> None:
    for n, (optimizer, lr, root) in enumerate([("adamw", 0.1, "a"), ("sgd", 0.1, "b"), ("sgd", 0.2, "c")]):
        write_run(tmp_path / f"{n}", {"optimizer": optimizer, "optimizer.lr": lr, "data.root": root}, 0.9)
    runs = read_runs([str(tmp_path)])
    assert len({run.config["optimizer._target_"] for run in runs}) == 2
    assert differing_keys(runs) == ["optimizer", "optimizer.lr"]
    assert differing_keys(runs[:1]) == []
    newer = replace(runs[2], config=runs[2].config | {"scheduler.warmup": 5})  # logged by other code
    assert differing_keys([*runs, newer]) == ["optimizer", "optimizer.lr", "scheduler.warmup"]


@pytest.mark.parametrize("patience", [None, 3])
def test_intervals_distinguish_runs_only_if_they_change_weights(tmp_path: Path, patience: int | None) -> None:
    """Runs that differ in nothing else are repeats, unless evaluations end them early or --by separates them."""
    for n, interval in enumerate(INTERVALS):
        write_run(tmp_path / f"{n}", {interval: 7, "patience": patience}, 0.9)
    expected = [] if patience is None else ["eval_every"]
    assert differing_keys(read_runs([str(tmp_path)])) == expected
    assert [run.state for run in comparing(tmp_path).runs].count("finished") == 1 + len(expected)
    by_interval = comparing(tmp_path, by=["log_every"])
    assert [group.num_runs for group in by_interval.groups] == [1 + len(expected), 1]


def test_the_test_at_the_end_does_not_distinguish_runs(tmp_path: Path) -> None:
    for n, tests in enumerate((False, True)):
        write_run(tmp_path / f"{n}", {"test_at_end": tests, "limit_test_samples": 10 + n}, 0.9)
    assert differing_keys(read_runs([str(tmp_path)])) == []


def test_a_flat_config_has_the_keys_of_today(monkeypatch: pytest.MonkeyPatch) -> None:
    data = {"data._target_": "hydrant.data.tensors", "data.train": "t.pt"}
    monkeypatch.setitem(key_tables()["removed"], "hydrant.data.tensors", ["outdated"])
    assert flat_with_added_keys(data | {"data.outdated": 1}) == flat_with_added_keys(data)
