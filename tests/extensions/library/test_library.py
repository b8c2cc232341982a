"""The optimizers of pytorch_optimizer, and those of timm, which are named by a key of their option."""

from __future__ import annotations

import copy
import json
import re
from functools import partial
from typing import Any

import pytest
import pytorch_optimizer
import timm.optim
import torch
from run_folders import assert_same_state
from torch import nn

from hydrant.errors import ConfigError
from hydrant.extensions.library import _names as library_names
from hydrant.extensions.library import _table as library_table
from hydrant.extensions.library import library_optimizer
from hydrant.optimizers import timm_optimizer
from hydrant.training.checkpoint.storage import join, split


def timm_names() -> list[str]:
    """Return the names of timm's optimizers that need no other device or package."""
    return [str(n) for n in timm.optim.list_optimizers() if not str(n).startswith(("bnb", "fused", "kron"))]


NEEDS_MORE = {"ranger21", "spectralsphere"}  # the number of updates; a model of matrices only


PACKAGES: dict[str, tuple[Any, list[str]]] = {
    "timm": (partial(timm_optimizer, weight_decay=0.01, kwargs={}), sorted({*timm_names()} - {"adahessian"})),
    "library": (partial(library_optimizer, weight_decay=None), sorted({*library_names()} - NEEDS_MORE)),
}


@pytest.mark.parametrize(
    ("package", "name"),
    [
        pytest.param(package, name, marks=pytest.mark.slow if place % 6 else [])
        for package, (_, package_names) in PACKAGES.items()
        for place, name in enumerate(package_names)
    ],
)
def test_a_saved_optimizer_of_a_package_continues_exactly(package: str, name: str) -> None:
    make_optimizer, _ = PACKAGES[package]
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


def test_optimizers_of_the_package_are_options_or_left_out() -> None:
    known = set(pytorch_optimizer.get_supported_optimizers())
    assert set(library_table()["left_out"]) < known
    by_licence = {name for name, reason in library_table()["left_out"].items() if "licence" in reason}
    assert by_licence == {"fromage", "nero"}  # as the package's README says


@pytest.mark.parametrize(
    ("arguments", "key", "message"),
    [
        ({"name": "sopa"}, "optimizer.name", "did you mean 'soap'?"),
        ({"name": "fromage"}, "optimizer.name", "its licence"),
        ({"name": "soap", "frequency": 2}, "optimizer.frequency", "precondition_frequency"),
        ({"name": "a2grad", "weight_decay": 0.1}, "optimizer.weight_decay", "unknown argument of a2grad"),
    ],
)
def test_an_unknown_name_or_argument_is_refused(arguments: dict[str, Any], key: str, message: str) -> None:
    groups = [{"params": [nn.Parameter(torch.zeros(2, 2))]}]
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        library_optimizer(groups, **{"lr": 0.1, "weight_decay": None, **arguments})
    assert caught.value.key == key


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hydrant.installation.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pytorch_optimizer.*\[optimizers\]"):
        library_optimizer([], name="soap", lr=0.1, weight_decay=None)
