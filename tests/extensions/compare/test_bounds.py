"""Which values count: intervals within 0 and 1, one value a run, tests of checkpoints, several configs."""

import csv
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from planted import Compare, warning_texts, write_run
from playwright.sync_api import Page
from reports import description, figure

from hydrant.extensions.compare.html_page import curves, write_page
from hydrant.extensions.compare.serialize import to_csv, to_dict, to_text


def write_two(sweep: Path, values: tuple[float, float], **keys: object) -> Path:
    for seed, value in enumerate(values):
        write_run(sweep / str(seed), {**keys, "seed": seed}, value)
    return sweep


def test_intervals_of_an_accuracy_stay_within_0_and_1(tmp_path: Path, comparing: Compare) -> None:
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


def test_an_accuracy_in_percent_has_no_bounds(tmp_path: Path, comparing: Compare) -> None:
    [group] = comparing(write_two(tmp_path, (98.0, 90.0))).groups
    assert group.estimate.high is not None
    assert group.estimate.high > 100


def test_the_class_of_a_metric_has_bounds(tmp_path: Path, comparing: Compare) -> None:
    node = {"quality": {"_target_": "torchmetrics.classification.MulticlassF1Score"}}
    sweep = write_two(tmp_path, (0.98, 0.9), **{"task.metrics": node})
    for path in sweep.glob("*/metrics.jsonl"):
        path.write_text(path.read_text().replace("val/accuracy", "val/quality"))
    [group] = comparing(sweep, metric="val/quality", mode="max").groups
    assert group.estimate.high == 1.0


def test_one_value_a_run_is_drawn_as_a_point(
    tmp_path: Path, comparing: Compare, open_page: Callable[..., Page]
) -> None:
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
    metric: str, tmp_path: Path, comparing: Compare, open_page: Callable[[Path], Page]
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


def test_other_values_are_of_the_last_update(tmp_path: Path, comparing: Compare) -> None:
    runs = write_tested(tmp_path, [1000, 1000])
    assert "val/accuracy after the last update" in to_text(comparing(runs), None)
    assert [run["measured_at"] for run in to_dict(comparing(runs))["runs"]] == [3000, 3000]
    one = comparing(runs, metric="test/accuracy")
    assert "of the checkpoints that were tested, after 1,000 updates; " in to_text(one, None)
    last = comparing(write_tested(tmp_path / "last", [3000, 3000]), metric="test/accuracy")
    assert "test/accuracy after the last update" in to_text(last, None)


def test_a_value_that_was_last_measured_earlier_says_when(tmp_path: Path, comparing: Compare) -> None:
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


def test_such_a_run_is_in_no_group_and_repeats_none(tmp_path: Path, comparing: Compare) -> None:
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


def test_the_verdict_on_such_runs_alone_sends_to_the_warnings(tmp_path: Path, comparing: Compare) -> None:
    write_mixed(tmp_path / "mixed", 0.01, 0.99)
    assert comparing(tmp_path).verdict.sentence == "No result: no run is in a group; the warnings say why."


@pytest.mark.parametrize("num_plain", [0, 1])
def test_a_comparison_with_few_or_no_other_runs_is_complete(
    num_plain: int, tmp_path: Path, comparing: Compare, open_page: Callable[[Path], Page]
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
