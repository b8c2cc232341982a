"""What a comparison computes: the numbers of scipy, statsmodels and scikit-learn, and of AlgoPerf's documentation."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from planted import LOST, MEANS, planted_results, write_run
from scipy import stats
from statsmodels.stats.multitest import multipletests

from hydrant.compare.comparison import Comparison
from hydrant.compare.groups import Group
from hydrant.compare.statistics import estimate, holm, paired
from hydrant.compare.targets import profile, workload_time
from hydrant.compare.terminal import as_text

Compare = Callable[..., Comparison]


def group(comparison: Comparison, optimizer: str, scheduler: str) -> Group:
    return next(g for g in comparison.groups if g.labels == {"optimizer": optimizer, "scheduler": scheduler})


def expected(cell: tuple[str, str]) -> dict[str, float]:
    """The planted results of a cell by seed, of the runs that have one."""
    lost = {LOST: {1, 3}, ("sgd", "cosine"): {4}}.get(cell, set())
    return {str(seed): value for seed, value in enumerate(planted_results()[cell]) if seed not in lost}


def test_groups_have_the_mean_and_the_t_interval_of_scipy(planted: Path, comparing: Compare) -> None:
    comparison = comparing(planted)
    assert len(comparison.groups) == len(MEANS)
    for cell in MEANS:
        values, found = list(expected(cell).values()), group(comparison, *cell)
        low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
        summed = found.estimate
        assert summed.num == len(values)
        assert summed.mean == pytest.approx(np.mean(values), rel=1e-12)
        assert summed.std == pytest.approx(stats.tstd(values), rel=1e-12)
        assert (summed.low, summed.high) == pytest.approx((low, high), rel=1e-12)
        assert summed.median == pytest.approx(np.median(values), rel=1e-12)
        assert found.best == max(values)


@pytest.mark.parametrize("baseline", ["optimizer=sgd", "optimizer=adamw,scheduler=wsd"])
def test_differences_are_those_of_scipy_paired_by_seed(
    planted: Path, comparing: Compare, baseline: str
) -> None:
    comparison = comparing(planted, baseline=baseline)
    assert comparison.baseline is not None
    base = expected((comparison.baseline.labels["optimizer"], comparison.baseline.labels["scheduler"]))
    raw: list[float] = []
    corrected: list[float | None] = []
    for cell in MEANS:
        found, own = group(comparison, *cell), expected(cell)
        if found is comparison.baseline:
            assert found.versus is None
            continue
        shared = [seed for seed in own if seed in base]
        reference = stats.ttest_rel([own[s] for s in shared], [base[s] for s in shared])
        interval = reference.confidence_interval(0.95)
        assert found.versus is not None
        assert found.versus.num_pairs == len(shared)
        assert found.versus.p == pytest.approx(reference.pvalue, rel=1e-9)
        assert (found.versus.low, found.versus.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
        raw.append(found.versus.p or 0.0)
        corrected.append(found.versus.p_holm)
    assert corrected == pytest.approx(multipletests(raw, method="holm")[1], rel=1e-12)


def test_holm_is_that_of_statsmodels() -> None:
    generator = np.random.default_rng(0)
    for num in (1, 2, 7, 30):
        p_values = (generator.random(num) ** 3).tolist()
        assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1].tolist(), rel=1e-12)
    assert holm([]) == []


def test_what_a_sample_cannot_tell_is_none() -> None:
    assert estimate([]).mean is None
    assert (estimate([0.5]).mean, estimate([0.5]).std, estimate([0.5]).low) == (0.5, None, None)
    assert paired([0.5], [0.25]).p is None
    assert paired([0.5, 0.75], [0.25, 0.5]).p is None, "no spread at all"
    assert paired([0.5, 0.75], [0.25, 0.5]).mean == 0.25
    assert paired([], []).mean is None
    assert (estimate([0.5, 0.5]).std, estimate([0.5, 0.5]).low) == (0.0, None), "no interval without a spread"
    correct = np.array([352, 350, 345, 343], np.float32) / np.float32(360)  # as they are logged
    found = paired([float(v) for v in correct[:2]], [float(v) for v in correct[2:]])
    assert found.mean == pytest.approx(7 / 360)
    assert (found.low, found.p) == (None, None), "rounding to float32 is no spread"


def test_the_winner_is_the_best_whole_group(planted: Path, comparing: Compare) -> None:
    comparison = comparing(planted)
    assert comparison.winner is group(comparison, "adamw", "cosine")
    lost = group(comparison, *LOST)
    assert lost.estimate.mean is not None
    assert lost.estimate.mean > max(expected(("adamw", "cosine")).values())
    assert (lost.lost, lost.states) == ({"failed": 2}, {"finished": 3, "failed": 2})
    assert comparing(planted, metric="val/loss").winner is not None
    assert comparing(planted, metric="val/loss").winner.name == comparison.winner.name  # type: ignore[union-attr]
    least = comparing(planted, mode="min").winner
    assert least is not None
    assert least.name == "optimizer=adamw scheduler=wsd", "a run of optimizer=sgd was never made"


@pytest.mark.parametrize("status", ["running", "preempted", "failed", "absent"])
def test_a_group_of_survivors_does_not_win(status: str, tmp_path: Path, comparing: Compare) -> None:
    """Of three runs of sgd one is there, with the best result of all; "running" is of no process: killed."""
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", {"optimizer": "adamw", "seed": seed}, 0.95 + seed / 1000)
        if status != "absent" or seed == 0:
            final = {"final": 0.97} if seed == 0 else {"final": 0.1, "status": status}
            write_run(tmp_path / f"b{seed}", {"optimizer": "sgd", "seed": seed}, **final)
    comparison = comparing(tmp_path)
    assert comparison.winner is comparison.baseline is comparison.groups[0]
    word = {"running": "killed", "absent": "missing"}.get(status, status)
    assert comparison.groups[1].shortfall == f"2 of its 3 runs have no result (2 {word})"
    assert comparison.runner_up is comparison.groups[1]


def test_the_only_groups_that_there_are_may_have_failed_runs(tmp_path: Path, comparing: Compare) -> None:
    write_run(tmp_path / "a0", {"optimizer": "adamw", "seed": 0}, 0.9)
    write_run(tmp_path / "a1", {"optimizer": "adamw", "seed": 1}, None, status="failed")
    write_run(tmp_path / "b0", {"optimizer": "sgd", "seed": 0}, None, status="failed")
    comparison = comparing(tmp_path)
    assert comparison.winner is not None
    assert comparison.winner.name == "optimizer=adamw"
    told = "no group is whole, not even this one: 1 of its 2 runs have no result (1 failed)"
    assert told in as_text(comparison, None)


def test_importance_finds_the_key_that_decides(tmp_path: Path, comparing: Compare) -> None:
    for seed in range(3):
        for lr in (0.001, 0.01, 0.1):
            for optimizer in ("adamw", "sgd"):
                final = 0.5 + 0.1 * math.log10(lr) + (0.02 if optimizer == "sgd" else 0) + 0.001 * seed % 2
                overrides = {"optimizer": optimizer, "optimizer.lr": lr, "seed": seed}
                write_run(tmp_path / f"{optimizer}-{lr}-{seed}", overrides, final)
    found = comparing(tmp_path).importance
    assert found is not None
    assert [key for key, _, _ in found.keys][:2] == ["optimizer.lr", "optimizer"]
    assert found.num_runs == 18
    assert found.is_reliable
    assert comparing(tmp_path / "sgd-0.1-*").importance is None, "three runs tell nothing"


def test_scores_are_the_areas_of_the_documentation() -> None:
    """`rho(tau)` is the ratio of workloads within `tau` of the fastest; the score its area over 1..4, by 3.

    Two workloads, each won by one submission, the other 1.99 times as slow: rho is 1/2 up to there, then 1. On the
    scorer's 100 points that is 32 intervals of 1/2, one of 3/4 and 66 of 1.
    """
    inf = math.inf
    found = profile({"a": {"x": 100, "y": 199}, "b": {"x": 199, "y": 100}, "c": {"x": inf, "y": 401}})
    assert found.scores["a"] == pytest.approx((32 / 2 + 3 / 4 + 66) / 99, abs=1e-12)
    assert found.scores["a"] == found.scores["b"]
    assert found.scores["a"] == pytest.approx((0.99 * 0.5 + 2.01) / 3, abs=0.01), "the area itself"
    assert found.scores["c"] == 0.0, "more than four times the fastest counts as not reached"
    assert found.ratios["a"][0] == 0.5
    assert found.ratios["a"][-1] == 1.0
    always = profile({"a": {"x": 5, "y": 7, "z": inf}, "b": {"x": 50, "y": 70, "z": inf}})
    assert always.scores == pytest.approx({"a": 2 / 3, "b": 0.0}), "a workload that none reaches counts"
    assert profile({"a": {"x": 0.0}, "b": {"x": 10.0}}).scores == pytest.approx({"a": 1.0, "b": 0.0})


def test_a_run_that_does_not_say_when_has_no_score_in_that_unit(tmp_path: Path, comparing: Compare) -> None:
    for number, optimizer in enumerate(["adamw", "sgd", "lion"]):
        folder = write_run(tmp_path / f"{number}", {"optimizer": optimizer}, 0.9)
        if optimizer == "sgd":
            rows = (folder / "metrics.jsonl").read_text().replace("perf/", "pace/")
            (folder / "metrics.jsonl").write_text(rows)
    comparison = comparing(tmp_path, target="val/accuracy>=0.9")
    assert math.isnan(comparison.times["1"]["seconds"])
    assert list(comparison.profiles) == ["updates", "samples"]
    assert math.isnan(comparison.reached["optimizer=sgd"].times["seconds"])
    assert (
        comparison.reached["optimizer=lion"].num,
        comparison.reached["optimizer=lion"].times["updates"],
    ) == (1, 100)
    assert [found.text for found in comparison.warnings] == [
        "no score in seconds: unknown of 1, which reached the target"
    ]


def test_a_workloads_time_is_the_median_over_studies_of_the_fastest_trial() -> None:
    inf = math.inf
    assert workload_time({"0": [30, 10, 20], "1": [40, inf], "2": [5]}) == 10
    assert workload_time({"0": [10], "1": [inf], "2": [inf, inf]}) == inf
    assert workload_time({"0": [10], "1": [20]}) == 15


def test_scores_of_runs_by_submission_workload_study_and_trial(tmp_path: Path, comparing: Compare) -> None:
    """Reached after 50 or 100 of 100 updates; the fastest of the two trials (learning rates) of a study counts."""
    reached = {"fast": [0.0, 0.9, 0.9], "slow": [0.0, 0.5, 0.9], "never": [0.0, 0.5, 0.5]}
    plan = {("adamw", "digits"): ("never", "fast"), ("adamw", "cifar"): ("slow", "never"),
            ("sgd", "digits"): ("slow", "slow"), ("sgd", "cifar"): ("slow", "fast")}  # fmt: skip
    for (optimizer, data), trials in plan.items():
        for lr, course in zip((0.1, 0.01), trials, strict=True):
            for seed in range(3):
                overrides = {"optimizer": optimizer, "data": data, "optimizer.lr": lr, "seed": seed}
                folder = tmp_path / f"{optimizer}-{data}-{lr}-{seed}"
                write_run(folder, overrides, None, values=reached[course], updates_per_second=10.0)
    comparison = comparing(tmp_path, by=["optimizer", "data"], target="val/accuracy>=0.9")
    assert comparison.times["adamw-digits-0.01-0"] == {"updates": 50, "samples": 3200, "seconds": 5}
    assert math.isinf(comparison.times["adamw-digits-0.1-0"]["updates"])
    for unit in (
        "updates",
        "samples",
        "seconds",
    ):  # each is fastest on one workload, half as fast on the other
        scores = comparison.profiles[unit].scores
        assert set(scores) == {"optimizer=adamw", "optimizer=sgd"}
        assert scores["optimizer=adamw"] == scores["optimizer=sgd"] == pytest.approx(82.75 / 99, abs=0.01)
