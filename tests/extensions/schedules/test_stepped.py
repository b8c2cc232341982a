"""Schedulers with a `step` method, torch's and those of users, become functions of the update."""

import json
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from run_folders import rows, training_rows
from torch.optim import lr_scheduler
from training_runs import Train, UserModule, whole_and_resumed

from hydrant import cli
from hydrant.clock import Clock, Steps
from hydrant.errors import ConfigError
from hydrant.extensions.schedules import SchedulerBase, StatefulSchedulerBase, Stepped

SHORT = ("tracker=local", "model.hidden=[8]", "duration=12", "log_every=1", "eval_every=2", "save_every=2")
TOTAL = 40


def adamw() -> torch.optim.Optimizer:
    one, other = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    return torch.optim.AdamW(
        [{"params": [one], "lr": 0.1}, {"params": [other], "lr": 0.2, "weight_decay": 0.5}]
    )


Fields = list[dict[str, Callable[[int], float]]]


def fields_of(make: Callable[..., Any], total: int = TOTAL) -> Fields:
    return Stepped(Clock(1000, Steps.constant(10), total), fn=make, every=1).fields(adamw())


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
    fields, optimizer = fields_of(make), adamw()
    scheduler, expected = make(optimizer), []
    cycles = isinstance(scheduler, lr_scheduler.OneCycleLR | lr_scheduler.CyclicLR)
    for _ in range(TOTAL):
        expected.append([(group["lr"], group["betas"][0]) for group in optimizer.param_groups])
        optimizer.step()
        scheduler.step()
    order = random.Random(0).sample(range(TOTAL), TOTAL)
    for n in order:
        assert [of_group["lr"](n) for of_group in fields] == [lr for lr, _ in expected[n]]
        if cycles:
            assert [of_group["betas.0"](n) for of_group in fields] == [beta for _, beta in expected[n]]
    assert [list(of_group) for of_group in fields] == [["lr", "betas.0"] if cycles else ["lr"]] * 2


def test_the_first_step_gives_the_values_of_the_first_update() -> None:
    """pytorch-accelerated steps after each update, so its whole schedule is one update late."""

    class Counting(StatefulSchedulerBase):
        def get_updated_values(self, num_updates: int) -> list[float]:
            return [num_updates + 0.5, num_updates + 0.25]

    first, second = fields_of(Counting)
    assert [first["lr"](n) for n in (0, 1, 7)] == [0.5, 1.5, 7.5]
    assert second["lr"](7) == 7.25


OF_RUN = Clock(num_samples=1500, batch_sizes=Steps.constant(64), total_updates=188)
"""A run of 8 epochs. An epoch is 23.4 updates."""


def replayed(make: Callable[..., Any], every: object = 1, **arguments: Any) -> list[float]:
    """Return the lr of each update of the run, for a scheduler of a config."""
    lr = Stepped(OF_RUN, fn=partial(make, **arguments), every=every).fields(adamw())[0]["lr"]
    return [lr(n) for n in range(OF_RUN.total_updates)]


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (lr_scheduler.StepLR, {"step_size": 2}),
        (lr_scheduler.CosineAnnealingLR, {"T_max": "100%"}),
        (lr_scheduler.PolynomialLR, {"total_iters": "5ep", "power": 2.0}),
        (lr_scheduler.CyclicLR, {"base_lr": 0.01, "max_lr": 0.3, "step_size_up": "2ep"}),
    ],
)
def test_a_scheduler_can_be_stepped_by_epochs(make: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Epoch k begins at the first update that is not below k * 1500 / 64. Durations are counted in steps."""
    numbers = {"100%": 8, "5ep": 5, "2ep": 2}
    optimizer, expected = adamw(), list[float]()
    scheduler = make(optimizer, **{name: numbers.get(value, value) for name, value in arguments.items()})
    for epoch in range(8):
        start, end = (math.ceil(k * 1500 / 64) for k in (epoch, epoch + 1))
        expected += [optimizer.param_groups[0]["lr"]] * (end - start)
        optimizer.step()
        scheduler.step()
    assert replayed(make, every="1ep", **arguments) == expected


def test_durations_and_placeholders_in_the_arguments_are_numbers_of_updates() -> None:
    def steps(make: Callable[..., Any], **arguments: Any) -> list[int]:
        values = replayed(make, **arguments)
        return [n for n in range(1, 188) if values[n] != values[n - 1]]

    assert steps(lr_scheduler.StepLR, step_size="50%") == [94]
    assert steps(lr_scheduler.MultiStepLR, milestones=["1ep", "2ep", 100]) == [24, 47, 100]
    assert steps(lr_scheduler.StepLR, step_size="num_updates_per_epoch", gamma=0.5) == list(
        range(24, 188, 24)
    )
    assert replayed(lr_scheduler.CosineAnnealingLR, T_max="num_updates") == replayed(
        lr_scheduler.CosineAnnealingLR, T_max=188
    )


@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (transformers.get_scheduler, {"name": "linear", "num_warmup_steps": 5, "num_training_steps": 30}),
        (transformers.get_constant_schedule_with_warmup, {"num_warmup_steps": "1ep"}),
        (transformers.get_cosine_schedule_with_warmup, {"num_warmup_steps": 5, "num_training_steps": "num_updates"}),
        (transformers.get_cosine_with_hard_restarts_schedule_with_warmup,
         {"num_warmup_steps": 5, "num_training_steps": 30, "num_cycles": 2}),
        (transformers.get_polynomial_decay_schedule_with_warmup, {"num_warmup_steps": 5, "num_training_steps": 30}),
    ],
)  # fmt: skip
def test_functions_that_return_a_scheduler_are_replayed(
    make: Callable[..., Any], arguments: dict[str, Any]
) -> None:
    optimizer, expected, numbers = adamw(), list[float](), {"1ep": 24, "num_updates": 188}
    scheduler = make(
        optimizer=optimizer, **{name: numbers.get(value, value) for name, value in arguments.items()}
    )
    for _ in range(188):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert replayed(make, **arguments) == expected


class OfGroups(SchedulerBase):
    """Sets the values that a function computes from the update and the param groups."""

    def __init__(self, optimizer: torch.optim.Optimizer, compute: Callable[..., Any]) -> None:
        super().__init__(optimizer)
        self.compute = compute

    def get_updated_values(self, num_updates: int) -> Any:
        return self.compute(num_updates, self.optimizer)


@pytest.mark.parametrize(
    "compute",
    [
        lambda n, optimizer: np.float32(n) / 4,
        lambda n, optimizer: np.int64(n) / np.float64(4),
        lambda n, optimizer: np.array(n / 4),
        lambda n, optimizer: np.array([n / 4, -n]),
        lambda n, optimizer: torch.tensor([n / 4, -n]),
        lambda n, optimizer: (value for value in (n / 4, -n)),
    ],
    ids=["float32", "float64", "0 dimensions", "array", "tensor", "generator"],
)
def test_values_of_any_numeric_type(compute: Callable[..., Any]) -> None:
    assert replayed(OfGroups, compute=compute) == [n / 4 for n in range(188)]


def parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


@pytest.mark.parametrize(
    ("compute", "message"),
    [
        (
            lambda n, optimizer: 0.1 if parameters(optimizer)[0].grad is None else 0.2,
            "reads weights or gradients",
        ),
        (lambda n, optimizer: sum(p.norm() for p in parameters(optimizer)), "reads weights or gradients"),
        (lambda n, optimizer: torch.cat(parameters(optimizer)).std(), "reads weights or gradients"),
        (lambda n, optimizer: float(parameters(optimizer)[1]), "reads weights or gradients"),
        (lambda n, optimizer: len(optimizer.state) / 10, "reads the optimizer's state"),
        (lambda n, optimizer: len(optimizer.state_dict()), "reads the optimizer's state"),
        (
            lambda n, optimizer: object() if n == 3 else 0.1,
            "sets lr to <object .*> for update 3, but a number",
        ),
    ],
)
def test_schedulers_that_read_what_training_changes_are_refused(
    compute: Callable[..., Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"fn._target_: {message}"):
        replayed(OfGroups, compute=compute)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda optimizer: None, "returns a NoneType, but a scheduler of torch or a SchedulerBase is needed"),
        (lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer), "waits for a metric"),
    ],
)
def test_functions_that_return_something_else_are_refused(make: Callable[..., Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"fn._target_: {message}"):
        replayed(make)


class Late(lr_scheduler.LRScheduler):
    """Writes a second field, and only from update 20 on."""

    def get_lr(self) -> list[Any]:
        for group in self.optimizer.param_groups:
            group["weight_decay"] *= 10 if self.last_epoch == 20 else 1
        return [group["lr"] for group in self.optimizer.param_groups]


def test_a_field_that_is_written_late_is_replayed_too() -> None:
    first, second = fields_of(Late)
    assert [*first] == [*second] == ["lr", "weight_decay"]
    assert [second["weight_decay"](n) for n in (0, 19, 20, TOTAL - 1)] == [0.5, 0.5, 5.0, 5.0]


USER_SCHEDULERS = """
from hydrant.extensions.schedules import SchedulerBase, StatefulSchedulerBase

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
    def __init__(self, opt, growth):
        super().__init__(opt, param_group_field="weight_decay")
        self.growth = growth

    def get_updated_values(self, num_updates):
        return self.base_lr_values[0] + self.growth * num_updates

class OfGradients(SchedulerBase):
    def get_updated_values(self, num_updates):
        return [group["params"][0].grad.norm() for group in self.optimizer.param_groups]

def halving(optimizer, lengths: list[int]):
    from torch.optim.lr_scheduler import MultiStepLR
    return MultiStepLR(optimizer, lengths, gamma=0.5)
"""


@pytest.fixture
def user_words(user_module: UserModule) -> tuple[str, ...]:
    user_module("user_schedulers", USER_SCHEDULERS)
    return (
        *SHORT, "allow_targets=[user_schedulers]", "scheduler=stepped",
        "scheduler.fn._target_=user_schedulers.Milestones", "+scheduler.fn.milestones=[3,7]", "+scheduler.fn.gamma=0.1",
         "+scheduler@schedules.weight_decay=stepped",
        "schedules.weight_decay.fn._target_=user_schedulers.Decay", "+schedules.weight_decay.fn.growth=0.01",
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
    assert shown["lr"] == [row["optim/lr"] for row in logged]


def test_a_function_of_a_user_takes_durations(user_module: UserModule, train: Train) -> None:
    user_module("user_schedulers", USER_SCHEDULERS)
    stepped = (
        "scheduler=stepped",
        "scheduler.fn._target_=user_schedulers.halving",
        "+scheduler.fn.lengths=[25%,50%]",
    )
    alone = (
        "~scheduler",
        "+scheduler={_target_: user_schedulers.halving, _partial_: true, lengths: [25%,50%]}",
    )
    every_second = [1e-3] * 2 + [5e-4] * 4 + [2.5e-4] * 6  # 25% and 50% of 12 updates are 1 and 3 whole steps
    every_one = [1e-3] * 3 + [5e-4] * 3 + [2.5e-4] * 6
    for words, expected in (((*stepped, "scheduler.every=2"), every_second), (alone, every_one)):
        folder = train(*SHORT, "allow_targets=[user_schedulers]", *words, name=f"{len(words)}")
        assert [row["optim/lr"] for row in training_rows(folder)] == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("scheduler.fn._target_=torch.optim.lr_scheduler.OneCycleLR", "~scheduler.fn.milestones",
          "~scheduler.fn.gamma", "+scheduler.fn.max_lr=1", "+scheduler.fn.total_steps=12",
          "+scheduler@schedules.betas.0=constant"),
         "schedules.betas.0: betas.0 has a schedule already"),
        (("scheduler.fn._target_=user_schedulers.Decay", "~scheduler.fn.milestones", "~scheduler.fn.gamma",
          "+scheduler.fn.growth=0.1"),
         "scheduler: this scheduler has no number 'lr' to schedule. It has weight_decay"),
        (("scheduler.fn._target_=torch.optim.lr_scheduler.OneCycleLR", "~scheduler.fn.milestones",
          "~scheduler.fn.gamma", "+scheduler.fn.max_lr=1", "+scheduler.fn.total_steps=5"),
         "scheduler.fn: torch.optim.lr_scheduler.OneCycleLR refuses it: Tried to step 6 times"),
        (("scheduler.fn._target_=torch.optim.lr_scheduler.ReduceLROnPlateau", "~scheduler.fn.milestones",
          "~scheduler.fn.gamma"), "scheduler.fn._target_: waits for a metric; use the option plateau instead"),
        (("scheduler.fn._target_=user_schedulers.OfGradients", "~scheduler.fn.milestones", "~scheduler.fn.gamma"),
         "scheduler.fn._target_: reads weights or gradients, but schedules are computed before training"),
        (("scheduler.every=0",), "scheduler.every: 0 is less than one update; give 1 or more"),
        (("optimizer=lbfgs",), "schedules.weight_decay.fn: user_schedulers.Decay refuses it: KeyError: 'weight_decay'"),
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
