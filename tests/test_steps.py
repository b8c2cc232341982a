"""The eager update is the optimizer's own step, whoever follows it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hydrant.compilation import EagerUpdate
from hydrant.config import compose, conf_dir

# But for LBFGS, which takes a closure.
OPTIONS = sorted(p.stem for p in (conf_dir() / "optimizer").glob("*.yaml") if p.stem != "lbfgs")
Follow = Callable[[Optimizer, list[str], pytest.MonkeyPatch], None]


def build(option: str, parameters: list[nn.Parameter]) -> Optimizer:
    settings: Any = OmegaConf.to_container(compose([f"optimizer={option}"]).optimizer, resolve=True)
    return instantiate(OmegaConf.create(settings), _convert_="all")([{"params": parameters, "name": "all"}])


def network(option: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Embedding(4, 3, sparse=option == "sparse_adam")


@pytest.mark.parametrize("option", OPTIONS)
def test_it_is_the_step_without_torch_s_wrapper(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, seen = network(option), network(option), list[str]()
    optimizer, reference = (build(option, list(model.parameters())) for model in (one, other))
    monkeypatch.setattr(optimizer, "_optimizer_step_code", lambda: seen.append("wrapper"))
    step = EagerUpdate(optimizer)
    for num_updates in range(5):
        for model, apply in ((one, functools.partial(step, num_updates)), (other, reference.step)):
            model.zero_grad()
            (model(torch.arange(4)) - 1).square().sum().backward()
            apply()
        for own, expected in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(own, expected)
    assert not seen


def _before(optimizer: Optimizer, seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer.register_step_pre_hook(lambda *_: seen.append("seen"))


def _after(optimizer: Optimizer, seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer.register_step_post_hook(lambda *_: seen.append("seen"))


def _instead(optimizer: Optimizer, seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    own = optimizer.step
    monkeypatch.setattr(optimizer, "step", lambda *_: (seen.append("seen"), own()))


def _in_its_class(optimizer: Optimizer, seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    own = type(optimizer).step
    wrapper = functools.wraps(own)(lambda *args: (seen.append("seen"), own(*args)))
    monkeypatch.setattr(type(optimizer), "step", wrapper)


class Proxy:
    """Passes for the function in it, as those of wrapt do."""

    def __init__(self, own: Any, seen: list[str]) -> None:
        self.__wrapped__, self.__code__, self._seen = own, own.__code__, seen

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any) -> None:
        self._seen.append("seen")
        self.__wrapped__(*args)


def _by_proxy(optimizer: Optimizer, seen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(optimizer), "step", Proxy(type(optimizer).step, seen))


@pytest.mark.parametrize("follow", [_before, _after, _instead, _in_its_class, _by_proxy])
@pytest.mark.parametrize("is_late", [False, True])
def test_who_follows_the_steps_of_an_optimizer_sees_them(
    follow: Follow, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimizer, seen = build("adamw", [nn.Parameter(torch.zeros(1))]), list[str]()
    if not is_late:
        follow(optimizer, seen, monkeypatch)
    step = EagerUpdate(optimizer)
    if is_late:
        follow(optimizer, seen, monkeypatch)
    step(0)
    assert seen == ["seen"]


@pytest.mark.parametrize("register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook])
def test_who_follows_the_steps_of_all_sees_them(register: Callable[..., Any]) -> None:
    step, seen = EagerUpdate(build("adamw", [nn.Parameter(torch.zeros(1))])), list[str]()
    handle = register(lambda *_: seen.append("seen"))
    step(0)
    handle.remove()
    step(1)
    assert seen == ["seen"]


def test_a_profile_names_the_steps_of_an_optimizer() -> None:
    step = EagerUpdate(build("adamw", [nn.Parameter(torch.zeros(1))]))
    with torch.profiler.profile() as profiler:
        step(0)
    assert "Optimizer.step#AdamW.step" in {event.key for event in profiler.key_averages()}
