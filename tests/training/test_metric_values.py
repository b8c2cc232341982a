"""Metrics with several values: each is logged by its name; what is no number is refused before the run."""

import re
from typing import Any

import pytest
import torch
from run_folders import rows
from sklearn.metrics import f1_score
from training_runs import DIGITS, Train

from hydrant.errors import ConfigError
from hydrant.training.metrics import named_values

SHORT = (*DIGITS, "duration=4")
CLASSES = "num_classes: 10"
METRIC = "torchmetrics.classification.Multiclass"


def test_a_vector_and_a_collection_are_logged_by_name(train: Train) -> None:
    folder = train(
        *SHORT,
        f"+task.metrics.f1={{_target_: {METRIC}F1Score, {CLASSES}, average: null}}",
        "+task.metrics.all={_target_: torchmetrics.MetricCollection, metrics: "
        f"[{{_target_: {METRIC}F1Score, {CLASSES}, average: macro}}, {{_target_: {METRIC}Accuracy, {CLASSES}}}]}}",
        "best.metric=val/f1/3",
    )
    for row in rows(folder):
        per_class = [row[f"val/f1/{number}"] for number in range(10)]
        assert row["val/all/MulticlassF1Score"] == pytest.approx(sum(per_class) / 10, rel=1e-6)
        assert 0 <= row["val/all/MulticlassAccuracy"] <= 1


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (
            "ConfusionMatrix, num_classes: 10",
            r"task.metrics.m: computes a tensor of shape \[10, 10\]; an evaluation logs",
        ),
        ("F1Score, num_classes: 3", "task.metrics.m: does not fit the predictions and targets: "),
    ],
)
def test_a_metric_that_does_not_fit_is_refused_before_the_run(
    metric: str, message: str, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*SHORT, f"+task.metrics.m={{_target_: {METRIC}{metric}}}", status=2)
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize("name", ["loss", "accuracy"])
def test_a_metric_does_not_replace_what_the_task_measures(
    name: str, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*SHORT, f"+task.metrics.{name}={{_target_: {METRIC}F1Score, num_classes: 10}}", status=2)
    assert f"task.metrics.{name}: the task measures '{name}' itself, and the metric would replace it" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize("value", [torch.zeros(2, 2), "high", [1.0, 2.0], None])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"task.metrics.f1: computes .*; an evaluation logs a number"):
        named_values("f1", value)


def test_the_entries_of_a_vector_have_the_names_of_the_classes() -> None:
    targets, predictions = [0, 1, 2, 2], [0, 2, 2, 2]
    scores = torch.from_numpy(f1_score(targets, predictions, average=None))
    assert named_values("f1", scores, ["cat", "dog", "eel"]) == {"f1/cat": 1.0, "f1/dog": 0.0, "f1/eel": 0.8}
    assert named_values("f1", scores, ["cat", "dog"]).keys() == {"f1/0", "f1/1", "f1/2"}
