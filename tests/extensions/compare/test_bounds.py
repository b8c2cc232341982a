"""Which values count: intervals within 0 and 1, one value a run, times to a target, several configs; and warnings."""

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from planted import ENVIRONMENT, comparing, warning_texts, write_run
from playwright.sync_api import Page
from reports import description, figure

from hydrant.extensions.compare.command import _plain, curves, thinning_indices, write_page
from hydrant.extensions.compare.ranking import profile, workload_time
from hydrant.extensions.compare.serialize import to_csv, to_dict, to_text


def write_two(sweep: Path, values: tuple[float, float], **keys: object) -> Path:
    for seed, value in enumerate(values):
        write_run(sweep / str(seed), {**keys, "seed": seed}, value)
    return sweep


def test_intervals_of_an_accuracy_stay_within_0_and_1(tmp_path: Path) -> None:
    comparison = comparing(write_two(tmp_path, (0.98, 0.9)), against="val/accuracy>=0.5")
    assert comparison.metric.bounds == (0.0, 1.0)
    [group] = comparison.groups
    assert group.estimate.high == 1.0
    assert group.estimate.low == pytest.approx(0.94 - 12.706204736 * 0.04)
    assert "cut at 0 and 1" in to_text(comparison, None)
    [curve] = curves(comparison)["groups"]["val/accuracy"]
    assert max(curve["high"]) == 1.0
    assert min(curve["low"]) >= 0.0
    assert comparison.verdicts.against is not None
    assert [test.high for test in comparison.verdicts.against.tests.values()] == [1.0]
    [loss] = comparing(tmp_path, metric="val/loss").groups
    assert loss.estimate.low is not None
    assert loss.estimate.low < 0, "the bounds of a loss are unknown"


def test_an_accuracy_in_percent_has_no_bounds(tmp_path: Path) -> None:
    [group] = comparing(write_two(tmp_path, (98.0, 90.0))).groups
    assert group.estimate.high is not None
    assert group.estimate.high > 100


def test_the_class_of_a_metric_has_bounds(tmp_path: Path) -> None:
    node = {"quality": {"_target_": "torchmetrics.classification.MulticlassF1Score"}}
    sweep = write_two(tmp_path, (0.98, 0.9), **{"task.metrics": node})
    for path in sweep.glob("*/metrics.jsonl"):
        path.write_text(path.read_text().replace("val/accuracy", "val/quality"))
    [group] = comparing(sweep, metric="val/quality", mode="max").groups
    assert group.estimate.high == 1.0


@pytest.mark.slow
def test_one_value_a_run_is_drawn_as_a_point(tmp_path: Path, open_page: Callable[..., Page]) -> None:
    for optimizer, value in (("adamw", 0.9), ("sgd", 0.8)):
        for seed in range(2):
            run = write_run(tmp_path / f"{optimizer}-{seed}", {"optimizer": optimizer, "seed": seed}, value)
            row = {
                "num_updates": 100 + seed,
                "time": 2e9,
                "test/accuracy": value + seed / 100,
                "test/num_updates": 75,
            }
            with (run / "metrics.jsonl").open("a") as file:
                file.write(f"{json.dumps(row)}\n")
    comparison = comparing(tmp_path, metric="test/accuracy")
    write_page(comparison, tmp_path / "report.html")
    page = open_page(tmp_path / "report.html")
    shown = figure(page, "curves")
    assert description(page, "curves").startswith("Curves: test/accuracy over updates, 2 groups")
    assert (shown.locator("circle").count(), shown.locator("line.whisker").count()) == (2, 2)
    assert shown.locator("path.line").count() == 0
    places = [float(circle.get_attribute("cx") or 0) for circle in shown.locator("circle").all()]
    assert 0 < places[1] - places[0] < 30, "side by side"
    page.get_by_label("Show", exact=True).select_option("runs")
    assert shown.locator("circle").count() == 4
    page.get_by_label("Metric", exact=True).select_option("val/accuracy")
    assert (shown.locator("circle").count(), shown.locator("path.line").count()) == (0, 4)


def write_tested(folder: Path, tested: Sequence[int]) -> Path:
    """Write runs of 3,000 updates, of which these are tested."""
    for seed, num_updates in enumerate(tested):
        run = write_run(folder / f"{seed}", {"seed": seed}, 0.9, total_updates=3000)
        row = {"num_updates": 3000, "epoch": 30, "time": 1.7e9, "test/accuracy": 0.8 + seed / 100,
               "test_ema/accuracy": 0.9, "test/num_updates": num_updates}  # fmt: skip
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
    return folder


@pytest.mark.parametrize("metric", ["test/accuracy", "test_ema/accuracy"])
def test_a_test_is_of_the_checkpoint_that_was_tested(
    metric: str, tmp_path: Path, open_page: Callable[[Path], Page]
) -> None:
    comparison = comparing(write_tested(tmp_path / "runs", [1000, 2500]), metric=metric)
    moment = "of the checkpoints that were tested, after 1,000 to 2,500 updates"
    text = to_text(comparison, None)
    assert f"{metric} {moment}; higher is better." in text
    assert [line.split()[3:5] for line in text.splitlines() if line[:1] in "01" and "finished" in line] == [
        ["3000", "1000"], ["3000", "2500"]
    ]  # fmt: skip
    plain = to_dict(comparison)
    assert plain["moment"] == moment
    assert [run["measured_at"] for run in plain["runs"]] == [1000, 2500]
    assert [row["measured_at"] for row in csv.DictReader(io.StringIO(to_csv(comparison)))] == ["1000", "2500"]
    write_page(comparison, tmp_path / "page.html")
    page = open_page(tmp_path / "page.html")
    assert moment in page.inner_text("#states")
    assert moment in page.inner_text("#groups")
    assert "measured after" in page.inner_text("#runs")
    assert "last update" not in text + page.inner_text("body")


def test_other_values_are_of_the_last_update(tmp_path: Path) -> None:
    runs = write_tested(tmp_path, [1000, 1000])
    assert "val/accuracy after the last update" in to_text(comparing(runs), None)
    assert [run["measured_at"] for run in to_dict(comparing(runs))["runs"]] == [3000, 3000]
    one = comparing(runs, metric="test/accuracy")
    assert "of the checkpoints that were tested, after 1,000 updates; " in to_text(one, None)
    last = comparing(write_tested(tmp_path / "last", [3000, 3000]), metric="test/accuracy")
    assert "test/accuracy after the last update" in to_text(last, None)


def test_a_value_that_was_last_measured_earlier_says_when(tmp_path: Path) -> None:
    """Such as one that a hook logs now and then."""
    for seed in range(2):
        run = write_run(tmp_path / f"{seed}", {"seed": seed}, 0.9, total_updates=3000)
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"num_updates": 2900, "epoch": 29, "time": 1.7e9, "mine/norm": 1.0}) + "\n")
    text = to_text(comparing(tmp_path, metric="mine/norm", mode="max"), None)
    assert "mine/norm after 2,900 updates; higher is better." in text


def write_mixed(folder: Path, lr: float, final: float) -> None:
    """Write a run that says `lr`, of which 0.1 trained the first 50 updates."""
    write_run(folder, {"optimizer.lr": lr}, final)
    record = json.loads((folder / "summary.json").read_text())
    stretches = [{"begin": 0, "end": 50, "config": {"optimizer.lr": 0.1}},
                 {"begin": 50, "end": None, "config": {"optimizer.lr": lr}}]  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(record | {"stretches": stretches}))


def test_such_a_run_is_in_no_group_and_repeats_none(tmp_path: Path) -> None:
    for lr, final in ((0.01, 0.8), (0.02, 0.9)):
        write_run(tmp_path / f"plain-{lr}", {"optimizer.lr": lr}, final)
    write_mixed(tmp_path / "mixed", 0.01, 0.99)  # as plain-0.01 by its config, and newer
    comparison = comparing(tmp_path, target="val/accuracy>=0.7")
    assert [group.estimate.mean for group in comparison.groups] == [0.8, 0.9]
    assert comparison.winner is comparison.groups[1]
    states = {run.name: run.state for run in comparison.runs}
    assert states == {"mixed": "several configs", "plain-0.01": "finished", "plain-0.02": "finished"}
    expected = "trained are in no group: mixed: optimizer.lr 0.1 until update 50, then optimizer.lr 0.01"
    assert expected in warning_texts(comparison)
    assert expected in to_text(comparison, None)
    plain = to_dict(comparison)
    assert [name for group in plain["groups"] for name in group["runs"]] == ["plain-0.01", "plain-0.02"]
    assert plain["runs"][0]["stretches"][0] == {"begin": 0, "end": 50, "config": {"optimizer.lr": 0.1}}
    assert set(comparison.profiles["updates"].scores) == {"optimizer.lr=0.01", "optimizer.lr=0.02"}


def test_the_verdict_on_such_runs_alone_sends_to_the_warnings(tmp_path: Path) -> None:
    write_mixed(tmp_path / "mixed", 0.01, 0.99)
    assert comparing(tmp_path).verdict.sentence == "No result: no run is in a group; the warnings say why."


@pytest.mark.parametrize("num_plain", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_comparison_with_few_or_no_other_runs_is_complete(
    num_plain: int, tmp_path: Path, open_page: Callable[[Path], Page]
) -> None:
    write_mixed(tmp_path / "runs" / "mixed", 0.01, 0.9)
    for n in range(num_plain):
        write_run(tmp_path / "runs" / f"{n}", {}, 0.9)
    comparison = comparing(tmp_path / "runs", target="val/accuracy>=0.5")
    assert (comparison.winner is None) == (num_plain == 0)
    assert "several configs" in to_text(comparison, None)
    write_page(comparison, tmp_path / "page.html")
    page = open_page(tmp_path / "page.html")
    assert "1 several configs" in page.inner_text("#states")


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


def test_a_unit_with_an_unknown_time_has_no_scores(tmp_path: Path) -> None:
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


def test_runs_are_scored_by_submission_workload_study_and_trial(tmp_path: Path) -> None:
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


def environment(**changes: Any) -> dict[str, Any]:
    """Return options for a run in another environment."""
    return {"environment": ENVIRONMENT | changes}


@pytest.mark.parametrize(
    ("overrides", "options", "expected"),
    [
        ({}, environment(git_commit="c" * 40), "the code commit differs: aaaaaaaaaa (...); cccccccccc (odd)"),
        ({}, environment(git_dirty=True), "uncommitted changes in odd: the code differs from the commit"),
        ({}, environment(torch="2.11.0"), "the torch version differs: 2.15.0 (...); 2.11.0 (odd)"),
        ({}, environment(world_size=2), "the number of ranks differs: 1 (...); 2 (odd)"),
        ({}, environment(gpu="H200"), "the device differs: CPU (...); H200 (odd)"),
        ({"data.num_classes": 5}, {}, "the data differs: data.num_classes=10 (...); data.num_classes=5 (odd)"),
        ({"data": "cifar10"}, {}, "the data differs: data=digits (...); data=cifar10 (odd)"),
        ({"global_batch_size": 32}, {}, "the budget differs: 6,400 samples (...); 3,200 samples (odd)"),
        ({"global_batch_size": 32}, {"total_updates": 200}, ""),
        ({"data.root": "elsewhere"}, {}, ""),
        ({"task.loss": "mae"}, {}, ""),  # the accuracy is the same quantity
        ({}, {"data_files": {"train": "aaaaaaa1", "val": "bbbbbbb2"}},
         "the data differs: content of data.val bbbbbbb1 (...); content of data.val bbbbbbb2 (odd)"),
        ({"data.val": "other.csv"}, {"data_files": {"train": "aaaaaaa1", "val": "bbbbbbb2"}},
         "the data differs: data.val=- (...); data.val=other.csv (odd)"),
        ({"optimizer": "sgd"}, {}, ""),
        ({}, {"end_reason": "val/accuracy >= 0.9"},
         "a hook has ended odd after 100 updates (val/accuracy >= 0.9): the results are those of this moment; "
         "--target compares when runs reach a value"),
        ({"folds": None, "fold_seed": 0, "limit_test_samples": None}, {}, ""),  # the others are of an earlier version
        ({}, {"status": "running"}, "killed: odd; not included in any mean"),
        ({}, {"status": "preempted"}, "preempted: odd; not included in any mean"),
        ({}, {"values": [0.1, None]},
         "finished, but its last val/accuracy is not finite: odd; not included in any mean"),
    ],
)  # fmt: skip
def test_differences_that_make_runs_incomparable_are_named(
    overrides: Mapping[str, Any],
    options: Mapping[str, Any],
    expected: str,
    tmp_path: Path,
) -> None:
    for seed in range(3):
        write_run(
            tmp_path / f"seed-{seed}",
            {"seed": seed},
            0.9,
            data_files={"train": "aaaaaaa1", "val": "bbbbbbb1"},
        )
    write_run(tmp_path / "odd", {"seed": 3, **overrides}, 0.9, **options)
    assert warning_texts(comparing(f"{tmp_path}/*")).replace("3 of 4 runs", "...") == expected


def test_only_one_run_of_a_job_counts(tmp_path: Path) -> None:
    """Seed 0 has three runs. The newest finished one is the second."""
    for number, seed in enumerate([0, 0, 0, 1]):
        options = {"status": "failed", "error": "killed"} if number == 2 else {}
        folder = write_run(
            tmp_path / f"{number}", {"seed": seed, "data.root": f"{number}"}, 0.9 + number / 100, **options
        )
        rows = [
            json.loads(line) | {"time": number}
            for line in (folder / "metrics.jsonl").read_text().splitlines()
        ]
        (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    comparison = comparing(tmp_path)
    assert [run.state for run in comparison.runs] == ["repeat", "finished", "repeat", "finished"]
    counts = "only the newest finished run of a job counts"
    assert warning_texts(comparison) == f"2 runs repeat a job with its seed: {counts}"
    (group,) = comparison.groups
    assert (group.estimate.num, group.num_runs, group.shortfall) == (2, 2, "")
    assert group.results == {"0": 0.91, "1": 0.93}
    assert [run.error for run in comparison.runs][2] == "the same job as 1, which counts; killed"


def test_thinned_curves_keep_their_ends_and_extremes() -> None:
    values = np.random.default_rng(0).normal(size=10_000)
    indices = thinning_indices(values, 200)
    assert len(indices) <= 202
    assert {0, len(values) - 1, int(values.argmin()), int(values.argmax())} <= set(indices)
    assert thinning_indices(values[:200], 200) == list(range(200))
    values[5] = np.nan
    assert np.isfinite(values[thinning_indices(values, 200)]).all()


def test_mean_curves_include_the_runs_with_a_result(planted: Path) -> None:
    comparison = comparing(planted)
    data = curves(comparison)
    place = next(n for n, g in enumerate(comparison.groups) if g.labels["optimizer"] == "lion")
    runs = [run for run in comparison.groups[place].runs if run.state == "finished"]
    curve = data["groups"]["val/accuracy"][place]
    assert curve["n"] == len(runs) == 3
    assert curve["v"] == pytest.approx(
        np.mean([r.series["val/accuracy"].values for r in runs], axis=0), rel=1e-5
    )
    assert curve["low"][-1] == pytest.approx(comparison.groups[place].estimate.low, rel=1e-5)
    assert curve["s"][-1] == 1.0


def test_runs_that_have_ended_are_in_neither_the_mean_nor_its_time(tmp_path: Path) -> None:
    """Two of four runs end after 40 updates, at twice the speed of the others."""
    for seed, (value, end, rate) in enumerate(
        [(0.5, 40, 200.0), (0.6, 40, 200.0), (0.7, 80, 100.0), (0.9, 80, 100.0)]
    ):
        keys = {"optimizer": "adamw", "seed": seed}
        write_run(tmp_path / f"{seed}", keys, value, total_updates=end, updates_per_second=rate)
    curve = curves(comparing(tmp_path))["groups"]["val/accuracy"][0]
    places = {u: n for n, u in enumerate(curve["u"])}
    assert (curve["s"][places[40]], curve["s"][places[60]], curve["s"][places[80]]) == (0.3, 0.6, 0.8)
    assert (curve["v"][places[40]], curve["v"][places[80]]) == (
        pytest.approx((0.5 + 0.6 + (0.7 + 0.9) * (1 - np.exp(-2.5))) / 4, rel=1e-4), 0.8
    )  # fmt: skip


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.1234567, 0.5, 0.97222222, 0.97222222], [0.12346, 0.5, 0.97222, 0.97222]),  # saturated
        ([0.97222222, 0.97222222], [0.97222222, 0.97222222]),
        ([1e6 + 0.123456789, 1e6 + 0.25, 1e6 + 0.5], [1000000.1235, 1000000.25, 1000000.5]),
        ([1.797e308, 1.5, 0.5, math.nan], [1.797e308, 1.5, 0.5, None]),
        ([0.5, 1.79769e308, 1.5], [0.5, None, 1.5]),  # 1.7977e308 is infinity
    ],
)  # fmt: skip
def test_curves_keep_digits_that_show_their_changes(values: list[float], shown: list[float | None]) -> None:
    assert _plain(np.array(values)) == shown
