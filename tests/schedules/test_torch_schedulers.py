"""Schedulers with a `step` method, torch's and those of users, become functions of the update."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from run_folders import rows, training_rows
from torch.optim import lr_scheduler
from training_runs import Train, UserModule, whole_and_resumed

from hydrant import cli
from hydrant.schedules import Replay, StatefulSchedulerBase

SHORT = ("tracker=local", "model.hidden=[8]", "duration=12", "log_every=1", "eval_every=2", "save_every=2")
TOTAL = 40


def adamw() -> torch.optim.Optimizer:
    one, other = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    return torch.optim.AdamW(
        [{"params": [one], "lr": 0.1}, {"params": [other], "lr": 0.2, "weight_decay": 0.5}]
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda o: lr_scheduler.StepLR(o, 7),
        lambda o: lr_scheduler.CosineAnnealingLR(o, TOTAL),
        lambda o: lr_scheduler.OneCycleLR(o, [0.1, 0.2], TOTAL),
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.3, 5),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 5, 2),
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [10]
        ),
        lambda o: lr_scheduler.ChainedScheduler(
            [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)]
        ),
        lambda o: lr_scheduler.MultiplicativeLR(o, lambda n: 0.9),
    ],
)
def test_torch_schedulers_are_replayed_bit_for_bit(make: Callable[[torch.optim.Optimizer], Any]) -> None:
    replay, optimizer = Replay(make, adamw(), TOTAL), adamw()
    scheduler, expected = make(optimizer), []
    cycles = isinstance(scheduler, lr_scheduler.OneCycleLR | lr_scheduler.CyclicLR)
    for _ in range(TOTAL):
        expected.append([(group["lr"], group["betas"][0]) for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    order = random.Random(0).sample(range(TOTAL), TOTAL)
    for n in order:
        assert [replay.value(n, g, "lr") for g in (0, 1)] == [lr for lr, _ in expected[n]]
        if cycles:
            assert [replay.value(n, g, "betas.0") for g in (0, 1)] == [beta for _, beta in expected[n]]
    assert replay.fields == [["lr", "betas.0"] if cycles else ["lr"]] * 2


def test_the_first_step_gives_the_values_of_the_first_update() -> None:
    """pytorch-accelerated steps after each update, so its whole schedule is one update late."""

    class Counting(StatefulSchedulerBase):
        def get_updated_values(self, num_updates: int) -> list[float]:
            return [num_updates + 0.5, num_updates + 0.25]

    replay = Replay(Counting, adamw(), TOTAL)
    assert [replay.value(n, 0, "lr") for n in (0, 1, 7)] == [0.5, 1.5, 7.5]
    assert replay.value(7, 1, "lr") == 7.25


class Late(lr_scheduler.LRScheduler):
    """Writes a second field, and only from update 20 on."""

    def get_lr(self) -> list[Any]:
        for group in self.optimizer.param_groups:
            group["weight_decay"] *= 10 if self.last_epoch == 20 else 1
        return [group["lr"] for group in self.optimizer.param_groups]


def test_a_field_that_is_written_late_is_replayed_too() -> None:
    replay = Replay(Late, adamw(), TOTAL)
    assert replay.fields == [["lr", "weight_decay"]] * 2
    assert [replay.value(n, 1, "weight_decay") for n in (0, 19, 20, TOTAL - 1)] == [0.5, 0.5, 5.0, 5.0]


USER_SCHEDULERS = """
from hydrant.schedules import SchedulerBase, StatefulSchedulerBase

class Milestones(SchedulerBase):
    '''Multiplies the current lr by gamma at each milestone.'''
    def __init__(self, optimizer, milestones, gamma):
        super().__init__(optimizer)
        self.milestones, self.gamma = set(milestones), gamma

    def get_updated_values(self, num_updates):
        if num_updates in self.milestones:
            return [group["lr"] * self.gamma for group in self.optimizer.param_groups]

class Decay(StatefulSchedulerBase):
    '''Increases the weight decay by the same amount in every update.'''
    def __init__(self, optimizer, growth):
        super().__init__(optimizer, param_group_field="weight_decay")
        self.growth = growth

    def get_updated_values(self, num_updates):
        return self.base_lr_values[0] + self.growth * num_updates
"""


@pytest.fixture
def user_words(user_module: UserModule) -> tuple[str, ...]:
    user_module("user_schedulers", USER_SCHEDULERS)
    return (
        *SHORT, "allow_targets=[user_schedulers]", "scheduler=stepped", "scheduler._target_=user_schedulers.Milestones",
        "+scheduler.milestones=[3,7]", "+scheduler.gamma=0.1", "+scheduler@schedules.weight_decay=stepped",
        "schedules.weight_decay._target_=user_schedulers.Decay", "+schedules.weight_decay.growth=0.01",
    )  # fmt: skip


def test_user_schedulers_run_resume_and_preview(
    user_words: tuple[str, ...],
    train: Train,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole, half = whole_and_resumed(train, monkeypatch, user_words, 6)
    logged = training_rows(whole)
    expected = [1e-3 * 0.1 ** ((n >= 3) + (n >= 7)) for n in range(12)]
    assert [row["optim/lr"] for row in logged] == pytest.approx(expected, rel=1e-12)
    assert [row["optim/weight_decay"] for row in logged] == pytest.approx(
        [0.01 + 0.01 * n for n in range(12)]
    )
    assert rows(half) == rows(whole)
    capsys.readouterr()
    assert cli.main(["preview", "--json", *user_words]) == 0
    shown = json.loads(capsys.readouterr().out)["schedules"]
    assert shown["main.0.lr"] == [row["optim/lr"] for row in logged]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("scheduler._target_=torch.optim.lr_scheduler.OneCycleLR", "~scheduler.milestones", "~scheduler.gamma",
          "+scheduler.max_lr=1", "+scheduler.total_steps=12", "+scheduler@schedules.betas.0=constant"),
         "schedules.betas.0: betas.0 has a schedule already"),
        (("scheduler._target_=user_schedulers.Decay", "~scheduler.milestones", "~scheduler.gamma",
          "+scheduler.growth=0.1"),
         "scheduler: this scheduler sets weight_decay, not lr"),
        (("scheduler._target_=torch.optim.lr_scheduler.OneCycleLR", "~scheduler.milestones", "~scheduler.gamma",
          "+scheduler.max_lr=1", "+scheduler.total_steps=5"),
         "scheduler: torch.optim.lr_scheduler.OneCycleLR refuses it: Tried to step 6 times"),
        (("scheduler._target_=torch.optim.lr_scheduler.ReduceLROnPlateau", "~scheduler.milestones",
          "~scheduler.gamma"), "scheduler._target_: waits for a metric; use the option plateau instead"),
        (("optimizer=lbfgs",), "schedules.weight_decay: user_schedulers.Decay refuses it: 'param_groups[0] of"),
    ],
)  # fmt: skip
def test_schedulers_that_cannot_be_replayed_are_refused(
    words: tuple[str, ...],
    message: str,
    user_words: tuple[str, ...],
    train: Train,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train(*user_words, *words, status=2)
    assert message in capsys.readouterr().err
