"""Schedulers that are stepped, a user's own among them, and the one that waits for a metric."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm.scheduler
import torch
from checks import assert_same_state, rows, training
from torch.optim import lr_scheduler

from hydrant import cli, loop
from hydrant.clock import Clock
from hydrant.schedules import Plateau, Replay, StatefulSchedulerBase

Train = Callable[..., Path]
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
def test_torch_s_own_are_replayed_bit_for_bit(make: Callable[[torch.optim.Optimizer], Any]) -> None:
    replay, real = Replay(make, adamw(), TOTAL), adamw()
    stepping, expected = make(real), []
    cycles = isinstance(stepping, lr_scheduler.OneCycleLR | lr_scheduler.CyclicLR)
    for _ in range(TOTAL):
        expected.append([(group["lr"], group["betas"][0]) for group in real.param_groups])
        real.step()
        stepping.step()
    order = random.Random(0).sample(range(TOTAL), TOTAL)  # in any order
    for n in order:
        assert [replay.value(n, g, "lr") for g in (0, 1)] == [lr for lr, _ in expected[n]]
        if cycles:
            assert [replay.value(n, g, "betas.0") for g in (0, 1)] == [beta for _, beta in expected[n]]
    assert replay.fields == [["lr", "betas.0"] if cycles else ["lr"]] * 2


def test_the_first_step_gives_the_values_of_the_first_update() -> None:
    """pytorch-accelerated steps after each update, so that its whole schedule comes one update late."""

    class Counting(StatefulSchedulerBase):
        def get_updated_values(self, num_updates: int) -> list[float]:
            return [num_updates + 0.5, num_updates + 0.25]

    replay = Replay(Counting, adamw(), TOTAL)
    assert [replay.value(n, 0, "lr") for n in (0, 1, 7)] == [0.5, 1.5, 7.5]
    assert replay.value(7, 1, "lr") == 7.25


class Late(lr_scheduler.LRScheduler):
    """Writes another field, and only late."""

    def get_lr(self) -> list[Any]:
        for group in self.optimizer.param_groups:
            group["weight_decay"] *= 10 if self.last_epoch == 20 else 1
        return [group["lr"] for group in self.optimizer.param_groups]


def test_what_is_written_late_is_replayed_too() -> None:
    replay = Replay(Late, adamw(), TOTAL)
    assert replay.fields == [["lr", "weight_decay"]] * 2
    assert [replay.value(n, 1, "weight_decay") for n in (0, 19, 20, TOTAL - 1)] == [0.5, 0.5, 5.0, 5.0]


OWN = """
from hydrant.schedules import SchedulerBase, StatefulSchedulerBase

class Milestones(SchedulerBase):
    '''lr times gamma at each milestone, from what it is by then.'''
    def __init__(self, optimizer, milestones, gamma):
        super().__init__(optimizer)
        self.milestones, self.gamma = set(milestones), gamma

    def get_updated_values(self, num_updates):
        if num_updates in self.milestones:
            return [group["lr"] * self.gamma for group in self.optimizer.param_groups]

class Decay(StatefulSchedulerBase):
    '''weight decay that grows by the same amount in every update.'''
    def __init__(self, optimizer, growth):
        super().__init__(optimizer, param_group_field="weight_decay")
        self.growth = growth

    def get_updated_values(self, num_updates):
        return self.base_lr_values[0] + self.growth * num_updates
"""


@pytest.fixture
def own(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    (workdir / "own_steps.py").write_text(OWN)
    monkeypatch.syspath_prepend(workdir)
    return (
        *SHORT, "allow_targets=[own_steps]", "scheduler=stepped", "scheduler._target_=own_steps.Milestones",
        "+scheduler.milestones=[3,7]", "+scheduler.gamma=0.1", "+scheduler@schedules.weight_decay=stepped",
        "schedules.weight_decay._target_=own_steps.Decay", "+schedules.weight_decay.growth=0.01",
    )  # fmt: skip


def read(folder: Path) -> list[dict[str, Any]]:
    return [row for row in rows(folder) if "optim/lr" in row]


def interrupt_after(patch: pytest.MonkeyPatch, num_updates: int) -> None:
    original = loop.make_update

    def interrupted(run: loop.Run, *, measure: bool) -> Any:
        if run.state.num_updates == num_updates:
            run.stop_signal = lambda: 2
        return original(run, measure=measure)

    patch.setattr(loop, "make_update", interrupted)


def test_a_user_s_own_run_from_their_folder_and_resume(
    own: tuple[str, ...], train: Train, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = train(*own, name="whole")
    logged = read(whole)
    expected = [1e-3 * 0.1 ** ((n >= 3) + (n >= 7)) for n in range(12)]
    assert [row["optim/lr"] for row in logged] == pytest.approx(expected, rel=1e-12)
    assert [row["optim/weight_decay"] for row in logged] == pytest.approx(
        [0.01 + 0.01 * n for n in range(12)]
    )
    with monkeypatch.context() as patch:
        interrupt_after(patch, 5)
        train(*own, name="broken", status=130)
    assert rows(train(*own, name="broken")) == rows(whole)
    capsys.readouterr()
    assert cli.main(["preview", "--json", *own]) == 0
    shown = json.loads(capsys.readouterr().out)["schedules"]
    assert shown["main.0.lr"] == [row["optim/lr"] for row in logged]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("scheduler._target_=torch.optim.lr_scheduler.OneCycleLR", "~scheduler.milestones", "~scheduler.gamma",
          "+scheduler.max_lr=1", "+scheduler.total_steps=12", "+scheduler@schedules.betas.0=constant"),
         "schedules.betas.0: betas.0 has a schedule already"),
        (("scheduler._target_=own_steps.Decay", "~scheduler.milestones", "~scheduler.gamma", "+scheduler.growth=0.1"),
         "scheduler: this scheduler writes weight_decay; not lr"),
        (("scheduler._target_=torch.optim.lr_scheduler.OneCycleLR", "~scheduler.milestones", "~scheduler.gamma",
          "+scheduler.max_lr=1", "+scheduler.total_steps=5"),
         "scheduler: torch.optim.lr_scheduler.OneCycleLR refuses it: Tried to step 6 times"),
        (("scheduler._target_=torch.optim.lr_scheduler.ReduceLROnPlateau", "~scheduler.milestones",
          "~scheduler.gamma"), "scheduler._target_: waits for a metric; use the option plateau instead"),
        (("optimizer=lbfgs",), "schedules.weight_decay: own_steps.Decay refuses it: 'param_groups[0] of"),
    ],
)  # fmt: skip
def test_what_cannot_be_stepped_is_refused(
    words: tuple[str, ...],
    message: str,
    own: tuple[str, ...],
    train: Train,
    capsys: pytest.CaptureFixture[str],
) -> None:
    train(*own, *words, status=2)
    assert message in capsys.readouterr().err


PLATEAU: dict[str, Any] = {"metric": "val/loss", "mode": "min", "factor": 0.5, "patience": 2, "threshold": 1e-3,
                           "threshold_mode": "rel", "cooldown": 1, "min_ratio": 0.01, "eps": 1e-8, "warmup": 0,
                           "warmup_init_ratio": 0.0}  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.filterwarnings("ignore:PlateauLRScheduler is deprecated:FutureWarning")
def test_plateau_is_torch_s_and_timm_s_and_its_state_is_saved_whole(seed: int) -> None:
    r = random.Random(seed)
    mode, clock = r.choice(["min", "max"]), Clock(100, 10, 200)
    ours = Plateau(clock, **PLATEAU | {"mode": mode})
    real = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    theirs = lr_scheduler.ReduceLROnPlateau(real, mode, 0.5, 2, 1e-3, "rel", 1, 0.003)
    timms = torch.optim.SGD([torch.zeros(1)], lr=0.3)
    plain = Plateau(clock, **PLATEAU | {"mode": mode, "cooldown": 0, "threshold": 1e-4})
    of_timm = timm.scheduler.PlateauLRScheduler(timms, 0.5, 2, threshold=1e-4, mode=mode, lr_min=0.003)
    for n in range(1, 100):  # timm's takes epoch 0 for its warmup
        value = r.random()
        ours.observe({"val/loss": value})
        theirs.step(value)
        plain.observe({"val/loss": value})
        of_timm.step(n, value)
        assert 0.3 * ours(n) == pytest.approx(real.param_groups[0]["lr"], rel=1e-12)
        assert 0.3 * plain(n) == pytest.approx(timms.param_groups[0]["lr"], rel=1e-12)
        if n % 7 == 0:
            restored = Plateau(clock, **PLATEAU | {"mode": mode})
            restored.load_state_dict(ours.state_dict())
            ours = restored
    assert ours(0) < 0.1


def test_plateau_falls_resumes_and_warms_up(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    falling = (*SHORT, "duration=16", "scheduler=plateau", "scheduler.metric=val/accuracy", "scheduler.mode=max",
               "scheduler.patience=0", "scheduler.factor=0.5", "optimizer.lr=1e-9", "scheduler.warmup=4")  # fmt: skip
    whole = train(*falling, name="whole")  # learns nothing: every evaluation after the first is a fall
    ratios = [row["optim/lr"] / 1e-9 for row in read(whole)]
    assert ratios[:4] == pytest.approx([0, 0.25, 0.5 * 1.0, 0.75 * 1.0], abs=0.5)
    assert ratios[8:] == sorted(ratios[8:], reverse=True)
    assert ratios[-1] < 0.05
    assert '"values": {}' in (whole / "schedule.json").read_text(), "not known beforehand"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 8)
        train(*falling, name="broken", status=130)
    broken = train(*falling, name="broken")
    assert rows(broken) == rows(whole)
    assert_same_state(training(broken), training(whole))


def test_plateau_needs_a_metric_that_there_is(train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    train(*SHORT, "scheduler=plateau", "scheduler.metric=val/acuracy", status=2)
    train(*SHORT, "scheduler=plateau", "eval_every=null", status=2)
    train(*SHORT, "scheduler=plateau", "scheduler.mode=max", status=2)
    train(*SHORT, "scheduler=plateau", "scheduler.warmup=13", status=2)
    train(*SHORT, "scheduler=product", "scheduler@scheduler.schedules.second=plateau", status=2)
    train(*SHORT, "scheduler=product", "scheduler@scheduler.schedules.second=stepped",
          "scheduler.schedules.second._target_=torch.optim.lr_scheduler.ConstantLR", status=2)  # fmt: skip
    first, second, *others = capsys.readouterr().err.splitlines()
    assert "scheduler.mode: val/loss is best where it is lowest; give scheduler.mode=min" in others[0]
    assert "scheduler.warmup: 13 updates of warmup" in others[1]
    told = "scheduler.schedules.second: only a function of the update can be part of another schedule"
    assert told in others[2]
    assert told in others[3]
    assert "scheduler.metric: no evaluation gives 'val/acuracy'; did you mean 'val/accuracy'" in first
    assert "eval_every: scheduler waits for evaluations" in second
