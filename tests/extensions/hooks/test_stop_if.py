"""`hook=stop_if` ends hopeless runs; they are stopped, not finished."""

import math
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from marks import slow
from training_runs import DIGITS, Train

from hydrant.extensions.hooks import StopIf
from hydrant.runs.folder import STOPPED_BY_RULE

RUN = (*DIGITS, "duration=20", "log_every=4", "eval_every=4", "optimizer=sgd", "hook=stop_if")
RULE = "hooks.stop_if.rule='val/loss > 2.2 after 6'"


@pytest.mark.parametrize(
    ("rule", "value", "num_updates", "is_over"),
    [
        ("val/loss > 5 after 200", 6.0, 200, True), ("val/loss > 5 after 200", 6.0, 199, False),
        ("val/loss > 5 after 200", 5.0, 300, False), ("val/loss >= 5", 5.0, 1, True),
        ("val/accuracy<0.2 after 10%", 0.1, 99, False), ("val/accuracy<0.2 after 10%", 0.1, 100, True),
        ("val/loss > 5", math.nan, 1, True), ("val/loss > 5", -math.inf, 1, True), ("val/loss > 5", 9.0, 0, False),
    ],
)  # fmt: skip
def test_when_the_rule_holds(rule: str, value: float, num_updates: int, is_over: bool) -> None:
    ended, hook = list[str](), StopIf(rule=rule)
    durations = {"10%": 100}
    clock = SimpleNamespace(updates=lambda duration, key: durations.get(duration, duration))
    plan: Any = SimpleNamespace(clock=clock, check_metric=Mock(), check_evaluates=Mock())
    hook.check(plan)
    trainer: Any = SimpleNamespace(end=ended.append)
    hook.on_evaluation(trainer, {rule.split()[0].partition("<")[0]: value, "num_updates": num_updates})
    assert bool(ended) == is_over
    assert all(reason.startswith(STOPPED_BY_RULE) for reason in ended)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["hooks.stop_if.rule='train/loss > 5'"],
            "hooks.stop_if.rule: reads evaluations only, and none gives 'train/loss'; did you mean 'val/loss'",
        ),
        *slow(
            (["hooks.stop_if.rule='val/loss = 5'"], "hooks.stop_if.rule: 'val/loss = 5' is no rule"),
            (["hooks.stop_if.rule='val/loss > x'"], "hooks.stop_if.rule: 'val/loss > x' is no rule"),
            (["hooks.stop_if.rule='val/loss > 5 after 3x'"], "'3x' is not a duration"),
            ([RULE, "eval_every=null"], "eval_every: stop_if waits for evaluations"),
            ([], "hooks.stop_if.rule: needs a value"),
        ),
    ],
)  # fmt: skip
def test_a_rule_that_cannot_hold_is_refused(
    words: list[str], message: str, train: Train, capsys: pytest.CaptureFixture[str]
) -> None:
    train(*RUN, *words, status=2)
    assert message in capsys.readouterr().err
