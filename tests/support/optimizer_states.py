"""Whether an optimizer of a package continues exactly from its saved state."""

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from run_folders import assert_same_state
from torch import nn

from hydrant.training.checkpoint.storage import join, split


def some_fast(names: Sequence[str]) -> list[Any]:
    """Return the optimizers of a package in order, every sixth of which is tried by default."""
    return [
        pytest.param(name, marks=pytest.mark.slow if place % 6 else [])
        for place, name in enumerate(sorted(names))
    ]


def check_continues(make_optimizer: Callable[..., torch.optim.Optimizer], name: str) -> None:
    """Check that a loaded optimizer makes the same updates as the saved one."""
    models = [nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 10)) for _ in range(2)]
    optimizers = [make_optimizer([{"params": list(m.parameters())}], name=name, lr=1e-2) for m in models]

    def update(position: int, seed: int) -> None:
        optimizers[position].zero_grad()
        inputs = torch.randn(8, 20, generator=torch.Generator().manual_seed(seed))
        models[position](inputs).square().mean().backward()
        optimizers[position].step()

    for seed in range(3):
        update(0, seed)
    models[1].load_state_dict(models[0].state_dict())
    tensors: dict[str, torch.Tensor] = {}
    plain = json.loads(json.dumps(split(optimizers[0].state_dict(), tensors)))
    optimizers[1].load_state_dict(copy.deepcopy(join(plain, tensors)))
    for seed in range(3, 6):
        update(0, seed)
        update(1, seed)
    assert_same_state(*(dict(model.state_dict()) for model in models))
