"""An eager step skips torch's wrapper around `Optimizer.step`, but no hook or wrapper of anybody else."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from configs import optimizer_node
from marks import each
from repository import options_of
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from hydrant.config.instantiate import instantiate_node
from hydrant.optimizers.kernels import OptimizerStep

# The steps of LBFGS and SAM take a closure, and Prodigy has a hook that checks its groups.
OTHERS = ("lbfgs", "sam", "prodigy")
OPTIONS = [option for option in options_of("optimizer") if option not in OTHERS]
Observe = Callable[[Optimizer, list[str], pytest.MonkeyPatch], None]


def build(option: str, parameters: list[nn.Parameter]) -> Optimizer:
    return instantiate_node(optimizer_node(option))([{"params": parameters, "name": "all"}])


def network(option: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Embedding(4, 3, sparse=option == "sparse_adam")


@pytest.mark.parametrize("option", each(OPTIONS, "optimizer"))
@torch.compiler.set_stance("force_eager")  # kron compiles its update
def test_it_computes_the_same_without_torch_s_wrapper(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one, other, calls = network(option), network(option), list[str]()
    optimizer, reference = (build(option, list(model.parameters())) for model in (one, other))
    monkeypatch.setattr(optimizer, "_optimizer_step_code", lambda: calls.append("wrapper"))
    step = OptimizerStep(optimizer)
    for _ in range(5):
        for model, apply in ((one, step), (other, reference.step)):
            model.zero_grad()
            (model(torch.arange(4)) - 1).square().sum().backward()
            apply()
        for actual, expected in zip(one.parameters(), other.parameters(), strict=True):
            assert torch.equal(actual, expected)
    assert not calls


def _pre_hook(optimizer: Optimizer, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer.register_step_pre_hook(lambda *_: calls.append("observed"))


def _post_hook(optimizer: Optimizer, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer.register_step_post_hook(lambda *_: calls.append("observed"))


def _on_the_instance(optimizer: Optimizer, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    step = optimizer.step
    monkeypatch.setattr(optimizer, "step", lambda *_: (calls.append("observed"), step()))


def _on_the_class(optimizer: Optimizer, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    step = type(optimizer).step
    wrapper = functools.wraps(step)(lambda *args: (calls.append("observed"), step(*args)))
    monkeypatch.setattr(type(optimizer), "step", wrapper)


class Proxy:
    """Looks like the function that it wraps, as a proxy of wrapt does."""

    def __init__(self, function: Any, calls: list[str]) -> None:
        self.__wrapped__, self.__code__, self._calls = function, function.__code__, calls

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__wrapped__, name)

    def __call__(self, *args: Any) -> None:
        self._calls.append("observed")
        self.__wrapped__(*args)


def _proxy_on_the_class(optimizer: Optimizer, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(optimizer), "step", Proxy(type(optimizer).step, calls))


@pytest.mark.parametrize(
    "observe", [_pre_hook, _post_hook, _on_the_instance, _on_the_class, _proxy_on_the_class]
)
@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("is_disabled", [False, True])
def test_a_wrapper_or_hook_of_one_optimizer_is_called(
    observe: Observe, is_late: bool, is_disabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also around a step that Dynamo has wrapped, whose attributes functools.wraps copies."""
    optimizer, calls = build("adamw", [nn.Parameter(torch.zeros(1))]), list[str]()
    if is_disabled:
        disable_compilation(type(optimizer), monkeypatch)
    if not is_late:
        observe(optimizer, calls, monkeypatch)
    step = OptimizerStep(optimizer)
    if is_late:
        step()
        observe(optimizer, calls, monkeypatch)
    step()
    assert calls == ["observed"]


def disable_compilation(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrap the step of an optimizer class as torch.compile does for SparseAdam and LBFGS on its first use."""
    monkeypatch.setattr(kind, "step", torch.compiler.disable(kind.step))


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("option", ["adamw", "sparse_adam"])
def test_the_wrapper_that_dynamo_puts_around_a_step_does_not_slow_it_down(
    option: str, is_late: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls = network(option), list[str]()
    optimizer = build(option, list(model.parameters()))
    monkeypatch.setattr(optimizer, "_optimizer_step_code", lambda: calls.append("torch's wrapper"))
    if not is_late:
        disable_compilation(type(optimizer), monkeypatch)
    step = OptimizerStep(optimizer)
    if is_late:
        step()
        disable_compilation(type(optimizer), monkeypatch)
    step()
    assert not calls


def test_a_step_that_somebody_compiled_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer, calls = build("adamw", [nn.Parameter(torch.zeros(1))]), list[str]()

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        raise AssertionError("the empty step has no graph")

    compiled: Any = torch.compile(type(optimizer).step, backend=backend)
    monkeypatch.setattr(type(optimizer), "step", compiled)
    monkeypatch.setattr(optimizer, "_optimizer_step_code", lambda: calls.append("torch's wrapper"))
    OptimizerStep(optimizer)()
    assert calls == ["torch's wrapper"]


@pytest.mark.parametrize("register", [register_optimizer_step_pre_hook, register_optimizer_step_post_hook])
def test_a_global_hook_is_called(register: Callable[..., Any]) -> None:
    step, calls = OptimizerStep(build("adamw", [nn.Parameter(torch.zeros(1))])), list[str]()
    handle = register(lambda *_: calls.append("observed"))
    step()
    handle.remove()
    step()
    assert calls == ["observed"]


def test_a_profile_contains_the_step_of_an_optimizer() -> None:
    step = OptimizerStep(build("adamw", [nn.Parameter(torch.zeros(1))]))
    with torch.profiler.profile() as profiler:
        step()
    assert "Optimizer.step#AdamW.step" in {event.key for event in profiler.key_averages()}
