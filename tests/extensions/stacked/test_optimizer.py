"""`StackedOptimizer`: every optimizer makes the steps of its own class, with the numbers of each lane."""

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from lanes import TINY, trainers_of
from marks import slow_but
from torch import Tensor, nn
from torch.optim import Optimizer

from hydrant.extensions.stacked.lanes import CannotStack, StackedWeights
from hydrant.extensions.stacked.optimizer import StackedOptimizer

MAPPED = (
    "sgd", "sgd optimizer.momentum=0.0", "sgd optimizer.nesterov=true", "sgd optimizer.fused=false", "adam", "adamw",
    "adamw optimizer.amsgrad=true", "adamw optimizer.fused=false", "nadam", "adamax", "rmsprop", "adagrad",
    "adagrad optimizer.fused=false", "adadelta", "lion", "muon", "muon optimizer.dtype=float32",
    "lamb",
)  # fmt: skip
"""Optimizers whose step is made for all lanes together."""

ALONE = ("torch_muon", "radam", "asgd", "adafactor", "soap", "normuon", "mars", "prodigy")
"""Optimizers whose lanes make their steps alone: they are made of others, branch on values or count in Python."""

LRS, DECAYS = (1e-3, 2e-3, 5e-3), (0.1, 0.01, 0.3)
NUM_UPDATES = 20


def gradients_of(parameters: Sequence[nn.Parameter], update: int, lane: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1000 * update + lane)
    return [torch.randn(p.shape, generator=generator).to(p.device) for p in parameters]


def weights_of(optimizers: Sequence[Optimizer]) -> list[StackedWeights]:
    groups = zip(*(optimizer.param_groups for optimizer in optimizers), strict=True)
    return [StackedWeights([group["params"] for group in of_lanes]) for of_lanes in groups]


def step_alone(optimizer: Optimizer, update: int, lane: int, lr: float) -> None:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for parameter, gradient in zip(parameters, gradients_of(parameters, update, lane), strict=True):
        parameter.grad = gradient
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()


def lr_at(update: int, lane: int) -> float:
    return LRS[lane] * (1 + math.cos(update / NUM_UPDATES * math.pi))


def runs_of(option: str) -> list[list[str]]:
    return [[*TINY, *f"optimizer={option}".split(), f"optimizer.weight_decay={decay}"] for decay in DECAYS]


@pytest.mark.parametrize("option", slow_but(("sgd", "adamw", "nadam"), MAPPED))
def test_steps_equal_those_of_the_class(option: str) -> None:
    runs = runs_of(option)
    with trainers_of(*runs, *runs) as trainers:
        stacked, alone = (
            [t.optimizers.entries["main"].optimizer for t in half] for half in (trainers[:3], trainers[3:])
        )
        weights = weights_of(stacked)
        together: StackedOptimizer | None = None
        for update in range(NUM_UPDATES):
            for lane, optimizer in enumerate(alone):
                step_alone(optimizer, update, lane, lr_at(update, lane))
            if update == 0:
                for lane, optimizer in enumerate(stacked):
                    step_alone(optimizer, update, lane, lr_at(update, lane))
                continue
            rows = list(itertools.chain.from_iterable(w.parameters for w in weights))
            assert rows
            for group in weights:
                row = [gradients_of(_all(stacked[lane]), update, lane) for lane in range(3)]
                places = [[_place(stacked[lane], p) for p in group.parameters[lane]] for lane in range(3)]
                group.rows.grad = torch.stack(
                    [torch.cat([row[lane][n].reshape(-1) for n in places[lane]]) for lane in range(3)]
                )
            numbers = [{"lr": [lr_at(update, lane) for lane in range(3)]} for _ in weights]
            together = together or StackedOptimizer(stacked, weights, numbers)
            together.step(numbers)
        limit = 3e-2 if option == "muon" else 1e-5  # Newton-Schulz in bfloat16
        for one, other in zip(stacked, alone, strict=True):
            a, b = (torch.cat([p.detach().reshape(-1) for p in _all(o)]).double() for o in (one, other))
            assert float((a - b).norm() / b.norm()) < limit
            _check_states(one, other)


def _all(optimizer: Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _place(optimizer: Optimizer, parameter: nn.Parameter) -> int:
    return next(n for n, p in enumerate(_all(optimizer)) if p is parameter)


def _check_states(one: Optimizer, other: Optimizer) -> None:
    """Check that a checkpoint of a lane holds the state of the class."""
    ours, theirs = one.state_dict()["state"], other.state_dict()["state"]
    assert ours.keys() == theirs.keys()
    for place, state in theirs.items():
        assert ours[place].keys() == state.keys()
        for key, value in state.items():
            if isinstance(value, Tensor):
                assert ours[place][key].shape == value.shape
                assert ours[place][key].dtype == value.dtype
            if key == "step":
                assert float(ours[place][key]) == float(value)


@pytest.mark.parametrize("option", slow_but(("adafactor", "asgd"), ALONE))
def test_other_optimizers_step_lane_by_lane(option: str) -> None:
    runs = runs_of(option) if option != "adafactor" else [[*TINY, "optimizer=adafactor"]] * 2
    with trainers_of(*runs) as trainers:
        optimizers = [trainer.optimizers.entries["main"].optimizer for trainer in trainers]
        for lane, optimizer in enumerate(optimizers):
            step_alone(optimizer, 0, lane, 1e-3)
        weights = weights_of(optimizers)
        for group in weights:
            group.rows.grad = torch.ones_like(group.rows)
        numbers = [{"lr": [1e-3] * len(runs)} for _ in weights]
        with pytest.raises(CannotStack):
            StackedOptimizer(optimizers, weights, numbers)
