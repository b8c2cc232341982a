"""The curves of the schedules are those of the fields, whatever the number of parameter groups."""

from typing import Any

import pytest

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.training.prepare.build import prepare

VIT = ("model=timm", "model.name=test_vit", "data=synthetic", "duration=20", "scheduler.warmup=50%")


def curves_of(*words: str) -> tuple[Any, dict[str, dict[str, Any]]]:
    plan = prepare(check(compose(list(words))), is_preview=True)
    return plan, plan.optimizers.schedules.panels(range(20))


def test_the_layers_of_a_model_share_a_panel() -> None:
    plan, panels = curves_of(*VIT, "param_groups.layer_decay=0.75", "param_groups.no_decay=true")
    assert list(panels) == ["lr"]
    peaks = [max(values) for _, values in panels["lr"].values()]
    assert len(peaks) < len(plan.optimizers.entries["main"].optimizer.param_groups)  # with and without decay
    assert peaks == pytest.approx([peaks[-1] * 0.75**n for n in range(len(peaks))][::-1])


def test_a_field_of_all_groups_needs_no_name() -> None:
    words = ("duration=20", "param_groups.no_decay=true", "+scheduler@schedules.weight_decay=linear")
    plan, panels = curves_of(*words)
    assert list(panels["lr"]) == [""]
    assert list(panels["weight_decay"]) == ["decay", "no_decay"]
    assert list(panels["lr"][""][1]) == plan.optimizers.schedules.curves(range(20))["lr"]
