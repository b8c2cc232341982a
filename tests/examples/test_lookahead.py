"""hook=lookahead equals its formula."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from example_projects import use_example
from run_folders import assert_same_state, weights
from torch import nn
from training_runs import DIGITS, Train, whole_and_resumed

from examples.airbench.airbench import Lookahead
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.errors import ConfigError

SHORT = (*DIGITS, "duration=12", "hook=lookahead", "hooks.lookahead.interval=5")


@pytest.fixture(autouse=True)
def project(monkeypatch: pytest.MonkeyPatch) -> None:
    use_example("airbench", monkeypatch)


def test_weights_become_the_average_every_few_updates_and_at_the_end() -> None:
    model = nn.BatchNorm1d(3)
    trainer: Any = SimpleNamespace(model=model, plan=SimpleNamespace(clock=SimpleNamespace(total_updates=5)))
    hook = Lookahead(interval=2, decay=0.9)
    hook.on_start(trainer)
    average = {name: t.clone() for name, t in model.state_dict().items() if t.is_floating_point()}
    for update in range(1, 6):
        with torch.no_grad():
            for tensor in average:
                model.state_dict()[tensor].add_(torch.randn(3))
        weights_before = {name: t.clone() for name, t in model.state_dict().items()}
        hook.after_update(trainer, update)
        if update % 2 == 0:
            decay = 0.9 * (update / 5) ** 3
            average = {n: decay * a + (1 - decay) * weights_before[n] for n, a in average.items()}
        is_changed = update % 2 == 0 or update == 5
        for name, tensor in average.items():
            torch.testing.assert_close(
                model.state_dict()[name], tensor if is_changed else weights_before[name]
            )


def test_a_weight_with_two_names_is_averaged_once() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    trainer: Any = SimpleNamespace(model=model, plan=SimpleNamespace(clock=SimpleNamespace(total_updates=1)))
    hook = Lookahead(interval=1, decay=0.9)
    hook.on_start(trainer)
    start = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight += 1
    hook.after_update(trainer, 1)
    torch.testing.assert_close(model[1].weight, start + 0.1)


def test_a_resumed_run_continues_exactly(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, resumed = whole_and_resumed(train, monkeypatch, SHORT, stop_at=8)
    assert_same_state(weights(whole), weights(resumed))


@pytest.mark.parametrize(("key", "value"), [("interval", 0), ("decay", 1.5), ("decay", -0.1)])
def test_numbers_out_of_range_are_refused(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"hooks\.lookahead\.{key}: needs a .*number"):
        check(compose([*SHORT, f"hooks.lookahead.{key}={value}"]))
