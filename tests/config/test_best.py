"""The metric of the best checkpoint, and whether more or less of it is better, follow from the config."""

import pytest
from training_runs import Train

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.config.metric_keys import mode_by_name

PREFIX = "+task.metrics.m={_target_: torchmetrics"
OF_EACH = f"{PREFIX}.ClasswiseWrapper, metric: {{_target_: torchmetrics.MeanAbsoluteError}}}}"
BOTH = (
    f"{PREFIX}.MetricCollection, metrics: {{f1: {{_target_: torchmetrics.F1Score, task: multiclass, num_classes: 10}}, "
    "hinge: {_target_: torchmetrics.classification.MulticlassHingeLoss, num_classes: 10}}}"
)


@pytest.mark.parametrize(
    ("words", "metric", "mode"),
    [
        ((), "val/accuracy", "max"),
        (("task.multi_label=true",), "val/accuracy", "max"),
        (("task=regression",), "val/loss", "min"),
        (("task=supervised",), "val/loss", "min"),
        (("task=regression", "best.metric=val/r2"), "val/r2", "max"),
        (("best.metric=val/loss",), "val/loss", "min"),
        (("best.metric=val_ema/accuracy",), "val_ema/accuracy", "max"),
        (("best.metric=val/night/accuracy",), "val/night/accuracy", "max"),
        (("best.mode=min",), "val/accuracy", "min"),
        (("best.metric=val/acuracy",), "val/acuracy", "auto"),  # refused once the metrics are known
        ((f"{PREFIX}.R2Score}}", "best.metric=val/m"), "val/m", "max"),
        ((f"{PREFIX}.MeanSquaredError}}", "best.metric=val/m"), "val/m", "min"),
        ((OF_EACH, "best.metric=val/m/3"), "val/m/3", "min"),
        ((BOTH, "best.metric=val/m/hinge"), "val/m/hinge", "min"),
        ((BOTH, "best.metric=val/m/f1"), "val/m/f1", "max"),
        ((BOTH, "best.metric=val/m/energy"), "val/m/energy", "auto"),
    ],
)
def test_the_metric_and_its_mode_are_resolved(words: tuple[str, ...], metric: str, mode: str) -> None:
    assert check(compose([*words]))["best"] == {"metric": metric, "mode": mode}


def test_the_mode_of_a_plateau_follows_from_its_metric() -> None:
    words = ("scheduler=plateau", "scheduler.metric=val/accuracy", "+scheduler@schedules.weight_decay=plateau",
             "schedules.weight_decay.metric=val/energy")  # fmt: skip
    config = check(compose([*words]))
    nodes = config["scheduler"], config["schedules"]["weight_decay"]
    assert [node["mode"] for node in nodes] == ["max", "auto"]
    assert check(compose([*words, "scheduler.mode=min"]))["scheduler"]["mode"] == "min"


@pytest.mark.parametrize(("names", "mode"), [
    ("brier_score match_cost f1_gap accuracy_drop loss/night", None),
    ("exact_match night/agreement r2", "max"), ("kernel_distance bits_per_byte z_loss", "min"),
])  # fmt: skip
def test_only_the_names_of_known_metrics_tell_the_mode(names: str, mode: str | None) -> None:
    assert {mode_by_name(f"val/{name}") for name in names.split()} == {mode}


@pytest.mark.usefixtures("gan")
def test_a_mode_that_nothing_tells_is_asked_for(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("task=gan", "model=gan", "tracker=local", "best.metric=val/generator")
    train(*words, status=2)
    assert (
        "best.mode: nothing says whether a higher or a lower val/generator is better"
        in capsys.readouterr().err
    )
    train(*words[:-1], "best.metric=val/generatr", status=2)
    assert "best.metric: no evaluation gives 'val/generatr'; did you mean" in capsys.readouterr().err
