"""The mean of the weights in the last part of training."""

import pytest
import torch
from run_folders import assert_same_state, rows, saved, weights
from torch import nn
from training_runs import Train, whole_and_resumed

from hydrant.clock import Clock, Steps
from hydrant.errors import ConfigError
from hydrant.optimizers import TailAverage

SHORT = ("tracker=local", "model=convnet", "model.widths=[4,8]", "duration=10", "eval_every=5", "save_every=1",
         "keep_last=99", "averaging=tail", "averaging.start=40%", "averaging.every=2", "optimizer.lr=0.01")  # fmt: skip


def test_the_average_equals_the_mean_of_the_checkpoints_of_the_tail(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is evaluated and saved, and the same if the run is interrupted, before the tail or in it."""
    whole, half = whole_and_resumed(train, monkeypatch, SHORT, stop_at=7)
    assert rows(whole) == rows(half)
    assert_same_state(saved(whole, "ema"), saved(half, "ema"))
    averaged = [weights(whole, f"update_{n:08d}") for n in (6, 8, 10)]
    for name, value in weights(whole, part="ema").items():
        if value.is_floating_point():
            mean = torch.stack([state[name].double() for state in averaged]).mean(0)
            torch.testing.assert_close(value.double(), mean, atol=1e-7, rtol=1e-6)
        else:
            assert torch.equal(value, averaged[-1][name])
    assert_same_state(weights(whole, "update_00000005", "ema"), weights(whole, "update_00000005"))
    assert_same_state(weights(whole, "update_00000007", "ema"), averaged[0])
    assert rows(whole)[-1]["val_ema/loss"] != rows(whole)[-1]["val/loss"]


def test_a_long_average_equals_the_mean_in_float64() -> None:
    model, generator = nn.Linear(3, 2), torch.Generator().manual_seed(0)
    tail = TailAverage(Clock(60, Steps((0, 800), (1, 2)), 1600), start="600sa", every="2sa")
    tail.start(model)
    sums, count = torch.zeros(2, 3, dtype=torch.float64), 0
    for num_updates in range(1, 1601):
        with torch.no_grad():
            model.weight.add_(torch.randn(2, 3, generator=generator), alpha=0.1)
        tail.update(num_updates)
        if num_updates > 600 and (num_updates > 800 or num_updates % 2 == 0):
            sums, count = sums + model.weight.detach().double(), count + 1
    assert count == 900
    torch.testing.assert_close(tail.state_dict()["weight"].double(), sums / count, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("start", "every", "key"),
    [("100%", 1, "start"), (20, 1, "start"), ("80%", 3, "every"), ("5ep", 0, "every")],
)
def test_a_tail_without_weights_is_refused(start: object, every: object, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^averaging\.{key}: "):
        TailAverage(Clock(1, Steps.constant(1), 10), start=start, every=every)
