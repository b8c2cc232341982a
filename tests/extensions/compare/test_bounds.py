"""Intervals of an accuracy stay between 0 and 1; a metric with one value a run is a point of the figure."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from planted import Compare, write_run
from playwright.sync_api import Page
from reports import description, figure

from hydrant.extensions.compare.html_page import curves, write_page
from hydrant.extensions.compare.serialize import to_text


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
