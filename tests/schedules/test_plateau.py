"""The plateau schedule equals torch's and timm's, resumes, and checks its arguments."""

import random
from typing import Any

import pytest
import timm.scheduler
import torch
from run_folders import assert_same_state, rows, training, training_rows
from torch.optim import lr_scheduler
from training_runs import Train, whole_and_resumed

from hydrant.clock import Clock, Steps
from hydrant.schedules import Plateau

SHORT = ("tracker=local", "model.hidden=[8]", "duration=12", "log_every=1", "eval_every=2", "save_every=2")


PLATEAU: dict[str, Any] = {"metric": "val/loss", "mode": "min", "factor": 0.5, "patience": 2, "threshold": 1e-3,
                           "threshold_mode": "rel", "cooldown": 1, "min_ratio": 0.01, "eps": 1e-8, "warmup": 0,
                           "warmup_init_ratio": 0.0}  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.filterwarnings("ignore:PlateauLRScheduler is deprecated:FutureWarning")
def test_plateau_equals_torch_and_timm_and_saves_its_state(seed: int) -> None:
    r = random.Random(seed)
    mode, clock = r.choice(["min", "max"]), Clock(100, Steps.constant(10), 200)
    plateau = Plateau(clock, **PLATEAU | {"mode": mode})
    torch_optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    torch_scheduler = lr_scheduler.ReduceLROnPlateau(torch_optimizer, mode, 0.5, 2, 1e-3, "rel", 1, 0.003)
    timm_optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    plain = Plateau(clock, **PLATEAU | {"mode": mode, "cooldown": 0, "threshold": 1e-4})
    timm_scheduler = timm.scheduler.PlateauLRScheduler(
        timm_optimizer, 0.5, 2, threshold=1e-4, mode=mode, lr_min=0.003
    )
    for n in range(1, 100):  # timm uses epoch 0 for its warmup
        value = r.random()
        plateau.observe({"val/loss": value})
        torch_scheduler.step(value)
        plain.observe({"val/loss": value})
        timm_scheduler.step(n, value)
        assert 0.3 * plateau(n) == pytest.approx(torch_optimizer.param_groups[0]["lr"], rel=1e-12)
        assert 0.3 * plain(n) == pytest.approx(timm_optimizer.param_groups[0]["lr"], rel=1e-12)
        if n % 7 == 0:
            restored = Plateau(clock, **PLATEAU | {"mode": mode})
            restored.load_state_dict(plateau.state_dict())
            plateau = restored
    assert plateau(0) < 0.1


def test_another_metric_begins_at_the_ratio_by_the_arguments_of_its_config() -> None:
    clock = Clock(100, Steps.constant(10), 200)
    one = Plateau(clock, **PLATEAU | {"patience": 0})
    other = Plateau(
        clock, **PLATEAU | {"patience": 0, "metric": "val/accuracy", "mode": "max", "factor": 0.1}
    )
    for value in (0.9, 0.9):
        one.observe({"val/loss": value})
    other.load_state_dict(one.state_dict())
    other.observe({"val/accuracy": 0.8})
    assert (one(0), other(0)) == (0.5, 0.5)
    other.observe({"val/accuracy": 0.7})
    assert other(0) == pytest.approx(0.05)


def test_plateau_reduces_the_lr_warms_up_and_resumes(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    falling = (*SHORT, "duration=16", "scheduler=plateau", "scheduler.metric=val/accuracy",
               "scheduler.patience=0", "scheduler.factor=0.5", "optimizer.lr=1e-9", "scheduler.warmup=4")  # fmt: skip
    # The model learns nothing, so every evaluation after the first reduces the lr.
    whole, half = whole_and_resumed(train, monkeypatch, falling, 9)
    ratios = [row["optim/lr"] / 1e-9 for row in training_rows(whole)]
    assert ratios[:4] == pytest.approx([0, 0.25, 0.5 * 1.0, 0.75 * 1.0], abs=0.5)
    assert ratios[8:] == sorted(ratios[8:], reverse=True)
    assert ratios[-1] < 0.05
    assert '"values": {}' in (whole / "schedule.json").read_text(), "not known before training"
    assert rows(half) == rows(whole)
    assert_same_state(training(half), training(whole))


def test_plateau_checks_its_arguments(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    train(*SHORT, "scheduler=plateau", "scheduler.metric=val/acuracy", status=2)
    train(*SHORT, "scheduler=plateau", "eval_every=null", status=2)
    train(*SHORT, "scheduler=plateau", "scheduler.mode=max", status=2)
    train(*SHORT, "scheduler=plateau", "scheduler.warmup=13", status=2)
    first, second, *others = capsys.readouterr().err.splitlines()
    assert "scheduler.mode: the best val/loss is the lowest; give scheduler.mode=min" in others[0]
    assert "scheduler.warmup: 13 updates of warmup" in others[1]
    assert "scheduler.metric: no evaluation gives 'val/acuracy'; did you mean 'val/accuracy'" in first
    assert "eval_every: scheduler waits for evaluations" in second
