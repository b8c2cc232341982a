"""Times to a target, performance profiles and scores, against cases computed by hand from AlgoPerf's documentation."""

import math
from pathlib import Path

import pytest
from planted import Compare, write_run

from hydrant.extensions.compare.targets import profile, workload_time


def test_scores_are_the_areas_below_the_profiles() -> None:
    """`rho(tau)` is the ratio of workloads within `tau` of the fastest, the score its area from 1 to 4, divided by 3.

    Each of two submissions is fastest on one of two workloads and 1.99 times slower on the other: rho is 1/2 up to
    1.99, then 1. On the scorer's 100 points these are 32 intervals of 1/2, one of 3/4 and 66 of 1.
    """
    inf = math.inf
    profiles = profile({"a": {"x": 100, "y": 199}, "b": {"x": 199, "y": 100}, "c": {"x": inf, "y": 401}})
    assert profiles.scores["a"] == pytest.approx((32 / 2 + 3 / 4 + 66) / 99, abs=1e-12)
    assert profiles.scores["a"] == profiles.scores["b"]
    assert profiles.scores["a"] == pytest.approx((0.99 * 0.5 + 2.01) / 3, abs=0.01), "the area itself"
    assert profiles.scores["c"] == 0.0, "more than four times slower than the fastest counts as not reached"
    assert profiles.ratios["a"][0] == 0.5
    assert profiles.ratios["a"][-1] == 1.0
    dominated = profile({"a": {"x": 5, "y": 7, "z": inf}, "b": {"x": 50, "y": 70, "z": inf}})
    assert dominated.scores == pytest.approx({"a": 2 / 3, "b": 0.0}), (
        "a workload that no submission reached counts"
    )
    assert profile({"a": {"x": 0.0}, "b": {"x": 10.0}}).scores == pytest.approx({"a": 1.0, "b": 0.0})


def test_a_unit_with_an_unknown_time_has_no_scores(tmp_path: Path, comparing: Compare) -> None:
    for number, optimizer in enumerate(["adamw", "sgd", "lion"]):
        folder = write_run(tmp_path / f"{number}", {"optimizer": optimizer}, 0.9)
        if optimizer == "sgd":
            rows = (folder / "metrics.jsonl").read_text().replace("perf/", "pace/")
            (folder / "metrics.jsonl").write_text(rows)
    comparison = comparing(tmp_path, target="val/accuracy>=0.9")
    assert math.isnan(comparison.times["1"]["seconds"])
    assert list(comparison.profiles) == ["updates", "samples"]
    assert math.isnan(comparison.group_times["optimizer=sgd"].times["seconds"])
    assert (
        comparison.group_times["optimizer=lion"].num_reached,
        comparison.group_times["optimizer=lion"].times["updates"],
    ) == (1, 100)
    assert [warning.text for warning in comparison.warnings] == [
        "no AlgoPerf score in seconds, because it is unknown when these runs reached the target: 1"
    ]


def test_the_time_on_a_workload_is_the_median_of_the_fastest_trials() -> None:
    inf = math.inf
    assert workload_time({"0": [30, 10, 20], "1": [40, inf], "2": [5]}) == 10
    assert workload_time({"0": [10], "1": [inf], "2": [inf, inf]}) == inf
    assert workload_time({"0": [10], "1": [20]}) == 15


def test_runs_are_scored_by_submission_workload_study_and_trial(tmp_path: Path, comparing: Compare) -> None:
    """Runs reach the target after 50 or 100 updates. The faster of the two trials (two lr) of a study counts."""
    courses = {"fast": [0.0, 0.9, 0.9], "slow": [0.0, 0.5, 0.9], "never": [0.0, 0.5, 0.5]}
    plan = {("adamw", "digits"): ("never", "fast"), ("adamw", "cifar"): ("slow", "never"),
            ("sgd", "digits"): ("slow", "slow"), ("sgd", "cifar"): ("slow", "fast")}  # fmt: skip
    for (optimizer, data), trials in plan.items():
        for lr, course in zip((0.1, 0.01), trials, strict=True):
            for seed in range(3):
                overrides = {"optimizer": optimizer, "data": data, "optimizer.lr": lr, "seed": seed}
                folder = tmp_path / f"{optimizer}-{data}-{lr}-{seed}"
                write_run(folder, overrides, None, values=courses[course], updates_per_second=10.0)
    comparison = comparing(tmp_path, by=["optimizer", "data"], target="val/accuracy>=0.9")
    assert comparison.times["adamw-digits-0.01-0"] == {"updates": 50, "samples": 3200, "seconds": 5}
    assert math.isinf(comparison.times["adamw-digits-0.1-0"]["updates"])
    for unit in ("updates", "samples", "seconds"):
        # Each optimizer is the fastest on one workload, and half as fast on the other.
        scores = comparison.profiles[unit].scores
        assert set(scores) == {"optimizer=adamw", "optimizer=sgd"}
        assert scores["optimizer=adamw"] == scores["optimizer=sgd"] == pytest.approx(82.75 / 99, abs=0.01)
