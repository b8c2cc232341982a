"""Which runs may be lanes, and the trial of two of them."""

import argparse
import dataclasses
import functools
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from lanes import TINY, plan_of
from marks import slow
from torch import Tensor, nn

from hydrant.batch import Batch, Outcome
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.data import LoaderSource
from hydrant.extensions.stacked.check import (
    HiddenContents,
    check_hidden,
    check_plan,
    plan_stacks,
    prepare_like,
    signature,
    try_lanes,
)
from hydrant.extensions.stacked.lanes import CannotStack
from hydrant.tasks import Classification
from hydrant.training.prepare import build

REFUSED = {
    "skip_non_finite": ["skip_non_finite=true"],
    "precision": ["precision=fp16"],
    "optimizer": ["optimizer=lbfgs"],
    "profiler": ["profiler=torch"],
    "hooks": ["hook=stop_at", "hooks.stop_at.time=1h"],
    "micro_batch_size": ["micro_batch_size=auto"],
    "duration": ["duration=60s"],
    "compile.scope": ["compile=default", "compile.scope=model"],
    "compile.optimizer": ["compile=default", "compile.optimizer=true"],
    "parallel.num_processes": ["parallel.num_processes=2"],
}


@pytest.mark.parametrize("key", REFUSED)
def test_the_reason_names_the_key(key: str) -> None:
    with pytest.raises(CannotStack, match=key.replace(".", r"\.")):
        check_plan(plan_of([*TINY, *REFUSED[key]]))


@pytest.mark.parametrize("order", [1, -1])
def test_a_schedule_in_seconds_keeps_all_runs_of_a_group_alone(order: int) -> None:
    """Only the run itself measures the time of its updates; a stack would count by an assumed one."""
    words = (["scheduler.warmup=5%"], ["scheduler.warmup=30s"])[::order]
    configs = [check(compose([*TINY, "scheduler=wsd", *of_run])) for of_run in words]
    one, other = jobs = Path("one"), Path("other")
    plan = plan_stacks(dict(zip(jobs, configs, strict=True)), "auto", 1)
    assert plan.stacks == [[one], [other]]
    assert all("in seconds" in str(plan.alone[job]) for job in jobs)


def test_runs_that_cannot_be_stacked_are_prepared_once_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, calls = build.prepare, list[object]()
    monkeypatch.setattr(
        build, "prepare", lambda config, **how: calls.append(config) or prepare(config, **how)
    )
    words = ([*TINY, "skip_non_finite=true", f"optimizer.lr=0.{n}"] for n in range(1, 5))
    configs = {Path(str(n)): check(compose(each)) for n, each in enumerate(words)}
    assert len(plan_stacks(configs, "auto", 1).alone) == len(configs)
    assert len(calls) == 2, "one tells that they cannot be stacked, one that they can train"


@pytest.mark.parametrize("num_workers", [0, 1])
def test_lanes_have_no_workers_for_an_evaluation(num_workers: int) -> None:
    """They live as long as the run, so many lanes would have too many."""
    plan = plan_of(TINY)
    read = LoaderSource([(torch.zeros(1), 0)], Tensor.clone, Tensor.clone, (), (), num_workers)
    plan = dataclasses.replace(
        plan, splits={**plan.splits, "val": dataclasses.replace(plan.splits["val"], source=read)}
    )
    with pytest.raises(CannotStack, match="worker processes read its data") if num_workers else nullcontext():
        check_plan(plan)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("model.dropout=0.0", "model.dropout=0.1"),
        ("optimizer=sgd optimizer.momentum=0.0", "optimizer=sgd optimizer.momentum=0.9"),
        ("model.hidden=[16]", "model.hidden=[32]"),
        ("optimizer=sgd", "optimizer=adam"),
        ("averaging=ema", "averaging=tail"),
    ],
)
def test_other_programs_have_other_signatures(one: str, other: str) -> None:
    assert signature(plan_of([*TINY, *one.split()])) != signature(plan_of([*TINY, *other.split()]))


@pytest.mark.parametrize(
    "other",
    [
        "seed=1",
        "optimizer.lr=0.5",
        "scheduler=wsd",
        "model.dropout=0.3",
        "optimizer.betas=[0.5,0.9]",
        "optimizer.weight_decay=0.0",
    ],
)
def test_the_same_program_has_one_signature(other: str) -> None:
    assert signature(plan_of(TINY)) == signature(plan_of([*TINY, other]))


def plans_to_try(*words: str, others: Sequence[str] = ("seed=1", "optimizer.lr=2e-3")) -> list:
    first = plan_of([*TINY, *words])
    configs = [first.config, plan_of([*TINY, *words, *others]).config]
    return [prepare_like(config, first) for config in (*configs, *configs)]


@pytest.mark.parametrize(
    "words",
    [
        *slow(((),)),
        ("duration=1",),
        *slow((("duration=2",),)),
        *slow((("optimizer=lion",),)),
        ("precision=bf16",),
    ],
)
def test_the_trial_returns_the_memory_of_a_lane(words: Sequence[str]) -> None:
    plans = plans_to_try(*words)
    num_weights = sum(p.numel() for p in plans[0].task.parameters())
    assert 4 * num_weights < try_lanes(plans) < 400 * num_weights


class Reassigning(nn.Module):
    """Assigns a new tensor to a buffer, which a mapped function cannot see."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.register_buffer("seen", torch.zeros(64))

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.flatten(1)
        self.seen = self.seen + 100 * flat.detach().abs().mean(dim=0)
        return self.linear(flat)


class Own(nn.Module):
    """Keeps a number where nobody sees that it differs."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.settings = {"scale": scale}

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs.flatten(1)) * self.settings["scale"]


class Deriving(nn.Linear):
    """Takes a derivative in its forward."""

    def __init__(self) -> None:
        super().__init__(64, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = inputs.flatten(1).detach().requires_grad_(True)
        logits = super().forward(inputs)
        slope = torch.autograd.grad(logits.square().sum(), inputs, create_graph=True)[0]
        return logits + slope.mean()


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda n: Reassigning(), "."),
        (lambda n: Own([1.0, 5.0][n % 2]), "."),
        (
            lambda n: Deriving(),
            r"Deriving cannot run for several runs at once \(.*requires_grad_.*, at test_check\.py",
        ),
    ],
)
def test_the_trial_finds_what_trains_otherwise(make: Callable[[int], nn.Module], reason: str) -> None:
    plans = plans_to_try()
    for n, plan in enumerate(plans):
        torch.manual_seed(n % 2)
        plan.task.model = make(n)
    with pytest.raises(CannotStack, match=reason):
        try_lanes(plans)


class Carrying(Classification):
    def forward(self, batch: Batch) -> Outcome:
        outcome = super().forward(batch)
        return outcome._replace(carried=outcome.predictions)


def test_a_task_that_carries_a_state_trains_alone() -> None:
    plans = plans_to_try()
    for plan in plans:
        plan.task.__class__ = Carrying
    with pytest.raises(CannotStack, match="it carries a state"):
        try_lanes(plans)


def scaled(tensor: Tensor, factor: float) -> Tensor:
    return tensor * factor


class Hiding(nn.Module):
    """Keeps a number where a stack cannot give each lane its own; `place` says where."""

    def __init__(self, place: str, number: float) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 10)
        self.own = number if place == "own" else 0.5
        holder = argparse.Namespace(numbers=[number])
        self.hidden: dict[str, object] = {
            "own": None,
            "partial": functools.partial(scaled, factor=number),
            "dict": {"scale": (1, number)},
            "closure": lambda tensor: tensor * number,
            "default": lambda tensor, factor=number: tensor * factor,
            "object": holder,
            "method": holder.__eq__,
            "tensor": [torch.full((2,), number)],
            "sparse": torch.full((2,), number).to_sparse(),
            "array": np.full(2, number),
            "objects": np.array([number, None], dtype=object),
            "bytes": bytearray(str(number).encode()),
            "hook": None,
        }[place]  # type: ignore[assignment]
        if place == "hook":
            self.linear.register_forward_hook(lambda module, inputs, output: output * number)
        self.myself = [self, self.linear.weight, self.forward]
        self.own_hooks = [place]  # not by number, as those of torch

    def forward(self, inputs: Tensor) -> Tensor:
        return self.linear(inputs.flatten(1))


PLACES = ("partial", "dict", "closure", "default", "object", "method", "tensor", "sparse", "array", "objects", "bytes",
          "hook")  # fmt: skip


@pytest.mark.parametrize("place", ["own", *PLACES])
def test_a_number_that_lanes_would_share_makes_another_program_or_is_found(place: str) -> None:
    plan = plan_of(TINY)
    same, again, other = (
        signature(dataclasses.replace(plan, task=Hiding(place, number))) for number in (0.1, 0.1, 0.2)
    )
    assert same == again
    assert (same == other) == (place == "own")
    check_hidden([Hiding(place, 0.1), Hiding(place, 0.1)])
    refused = pytest.raises(CannotStack, match=r"the content of .* differs between the runs")
    with nullcontext() if place == "own" else refused:  # what the seed draws
        check_hidden([Hiding(place, 0.1), Hiding(place, 0.2)])


def test_a_large_array_takes_no_memory_to_compare() -> None:
    module, size = nn.Module(), 2**24
    module.table = np.zeros(size, dtype=np.uint8)
    tracemalloc.start()
    HiddenContents(nn.Module()).of(module)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < size / 4


def test_a_number_that_an_optimizer_keeps_for_itself_makes_another_program() -> None:
    plans = plans_to_try(others=("optimizer.lr=2e-3",))[:2]
    for plan, number in zip(plans, (0.1, 0.2), strict=True):
        plan.optimizers.entries["main"].optimizer.gamma = number  # type: ignore[attr-defined]
    one, other = map(signature, plans)
    assert one != other
    plans[1].optimizers.entries["main"].optimizer.gamma = 0.1  # type: ignore[attr-defined]
    assert one == signature(plans[1])
