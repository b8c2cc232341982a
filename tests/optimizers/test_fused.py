"""A fused kernel that is called directly gives the bits of torch's own step, whatever happens to the optimizer."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from hydrant.optimizers.kernels import OptimizerStep, step_fused

KINDS: dict[str, Callable[..., Optimizer]] = {
    "adam": lambda groups: Adam(groups, lr=0.1, weight_decay=0.1, fused=True),
    "amsgrad": lambda groups: AdamW(groups, lr=0.1, amsgrad=True, fused=True),
    "adamw": lambda groups: AdamW(groups, lr=0.1, betas=(0.8, 0.9), maximize=True, fused=True),
    "sgd": lambda groups: SGD(groups, lr=0.1, weight_decay=0.1, fused=True),
    "momentum": lambda groups: SGD(groups, lr=0.1, momentum=0.9, nesterov=True, fused=True),
    "adagrad": lambda groups: Adagrad(groups, lr=0.1, lr_decay=0.1, fused=True),
}


def build(kind: str) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    return model, KINDS[kind]([{"params": list(model[0].parameters())}, {"params": [*model[1].parameters()]}])


def add_gradients(model: nn.Module, n: int) -> None:
    generator = torch.Generator().manual_seed(n)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def states_of(optimizer: Optimizer) -> list[Any]:
    return [value for state in optimizer.state.values() for value in state.values()]


def load_again(model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.load_state_dict(optimizer.state_dict())


def clear_the_states(model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.state = defaultdict(dict)


def replace_one_state(model: Any, optimizer: Optimizer) -> None:
    optimizer.state[model[1].bias] = {k: v.clone() * 2 for k, v in optimizer.state[model[1].bias].items()}


def replace_one_tensor(model: Any, optimizer: Optimizer) -> None:
    for key, value in optimizer.state[model[0].bias].items():
        optimizer.state[model[0].bias][key] = torch.zeros_like(value)


def take_one_gradient(model: Any, optimizer: Optimizer) -> None:
    model[0].bias.grad = None


def add_a_group(model: Any, optimizer: Optimizer) -> None:
    model.append(nn.Linear(2, 2))
    add_gradients(model, 7)
    optimizer.add_param_group({"params": list(model[2].parameters()), "lr": 0.01})


def begin_momentum(model: Any, optimizer: Optimizer) -> None:
    for group in optimizer.param_groups:
        group["momentum"] = 0.5


CHANGES = [
    load_again, clear_the_states, replace_one_state, replace_one_tensor, take_one_gradient, add_a_group,
]  # fmt: skip
MAKES_NO_STATE_LATER = {("adagrad", clear_the_states), ("adagrad", add_a_group)}  # in torch 2.11


@pytest.mark.parametrize(
    ("kind", "change"),
    [(kind, change) for kind in KINDS for change in CHANGES if (kind, change) not in MAKES_NO_STATE_LATER],
)
def test_its_bits_are_those_of_the_step(kind: str, change: Callable[..., None]) -> None:
    check(kind, change)


def test_a_momentum_that_begins_later_is_torch_s() -> None:
    check("sgd", begin_momentum)


def check(kind: str, change: Callable[..., None]) -> None:
    """Make steps with and without it, with a change after the third one, and compare weights and states."""
    pairs = [build(kind) for _ in range(2)]
    step = OptimizerStep(pairs[0][1])
    for n in range(6):
        for (model, optimizer), apply in zip(pairs, (step, pairs[1][1].step), strict=True):
            torch.manual_seed(n)  # for the weights of a new group
            add_gradients(model, n)
            if n == 3:
                change(model, optimizer)
            optimizer.param_groups[1]["lr"] = 0.1 / (n + 1)
            apply()
        assert all(map(torch.equal, *(model.parameters() for model, _ in pairs)))
        ours, torchs = states_of(pairs[0][1]), states_of(pairs[1][1])
        assert all(torch.equal(one, other) for one, other in zip(ours, torchs, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_torch_s_step_is_called_only_to_make_the_states(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = build(kind)
    step, calls = OptimizerStep(optimizer), list[str]()
    init_group = optimizer._init_group  # type: ignore[attr-defined]
    monkeypatch.setattr(optimizer, "_init_group", lambda *args: (calls.append("torch"), init_group(*args))[1])
    for n in range(3):
        add_gradients(model, n)
        step()
    assert len(calls) == (0 if kind in ("sgd", "adagrad") else 2)  # one for each group, if it makes states


@pytest.mark.parametrize("kind", ["adam", "sgd"])
def test_weights_of_two_dtypes_in_a_group_are_left_to_torch(kind: str) -> None:
    weights = [nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in (torch.float32, torch.float64)]
    optimizer = KINDS[kind](weights)
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    optimizer.step()
    assert not step_fused(optimizer)


def test_an_optimizer_without_a_fused_kernel_is_left_to_torch() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    assert not step_fused(Adam([weight], foreach=True))
