"""Every optimizer is tried before a run starts: it trains the weights, and its state is saved and restored."""

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
from configs import optimizer_node
from marks import each
from repository import options_of
from torch import Tensor, nn
from training_runs import Train

from hydrant import cli
from hydrant.config.instantiate import as_config_error, instantiate_node
from hydrant.errors import ConfigError
from hydrant.optimizers.kernels import Clipping, has_modes
from hydrant.training.prepare.build_optimizers import check_steps
from hydrant.training.update import OptimizerEntry, Optimizers

CPU, UNLIMITED = torch.device("cpu"), Clipping()


def check_made(
    node: Any,
    model: nn.Module,
    optimizer: Any,
    clipping: Clipping = UNLIMITED,
    device: torch.device = CPU,
    *,
    scales_loss: bool = False,
) -> None:
    entries = {"main": OptimizerEntry(optimizer, cast("Any", None), clipping)}
    optimizers = cast("Optimizers", SimpleNamespace(entries=entries, scales_loss=scales_loss))
    check_steps({"optimizers": {}, "optimizer": node}, model, optimizers, device)


def check_option(option: str, model: nn.Module, clipping: Clipping = UNLIMITED, *words: str) -> None:
    node = optimizer_node(option, *words)
    with as_config_error("optimizer", node):
        optimizer = instantiate_node(node)([{"params": list(model.parameters())}])
    check_made(node, model, optimizer, clipping)


class DeviceOnly(torch.optim.SGD):
    """Refuses weights on the host, as optimizers do that are written for GPUs."""

    def __init__(self, params: Any, *, lr: float, fault: type[Exception] | None) -> None:
        super().__init__(params, lr=lr)
        self.fault = fault

    def step(self, closure: Any = None) -> Any:
        if self.param_groups[0]["params"][0].device.type == "cpu":
            raise RuntimeError("needs a device")
        if self.fault is not None:
            raise self.fault("CUDA error")
        return super().step(closure)


@pytest.mark.parametrize("fault", [None, torch.OutOfMemoryError, torch.AcceleratorError, RuntimeError])
def test_the_device_is_needed_only_by_what_fails_on_the_host(fault: type[Exception] | None) -> None:
    """An error of the device is not the optimizer's. The meta device stands in for a GPU."""
    model, device = nn.Linear(3, 2), torch.device("meta")

    def check(make: Any) -> None:
        optimizer = make(list(model.parameters()))
        with patch("hydrant.training.prepare.build_optimizers.instantiate_node", lambda _: make):
            check_made({}, model, optimizer, device=device)

    check(partial(torch.optim.SGD, lr=0.1))
    make = partial(DeviceOnly, lr=0.1, fault=fault)
    if fault is None:
        check(make)
    else:
        with pytest.raises(ConfigError if fault is RuntimeError else fault):
            check(make)


@pytest.mark.parametrize(
    ("option", "sparse", "is_accepted"),
    [("sparse_adam", True, True), ("sparse_adam", False, False), ("adamw", True, False), ("sgd", True, True)],
)
def test_an_optimizer_must_take_the_gradients_of_model(option: str, sparse: bool, is_accepted: bool) -> None:
    model = nn.Embedding(100, 30, sparse=sparse)
    before = model.weight.detach().clone()
    if is_accepted:
        check_option(option, model)
    else:
        message = r"^optimizer: \w+ cannot train this model: .*(dense|sparse) grad"
        with pytest.raises(ConfigError, match=message):
            check_option(option, model)
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None


REFUSE_COMPLEX = {"adafactor", "ademamix", "kron", "lamb", "mars", "muon", "normuon", "prodigy", "scion", "shampoo",
                  "soap", "sparse_adam", "timm", "torch_muon"}  # fmt: skip
"""Options that fail on complex matrices, or move them otherwise than pairs, such as by squares that are negative."""


def moved(option: str, words: Sequence[str], weight: Tensor) -> Tensor:
    """Return a weight after five steps towards 0 in a valley; a complex one is a pair of real numbers."""
    weight = nn.Parameter(weight.clone())
    optimizer = instantiate_node(optimizer_node(option, *words))([{"params": [weight]}])
    steepness = torch.arange(1.0, 13).view(4, 3)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = (
            steepness * weight.abs().square() if weight.is_complex() else steepness[..., None] * weight**2
        ).sum()
        loss.backward()
        return loss

    if has_modes(optimizer):
        optimizer.train()
    for _ in range(5):
        optimizer.step(closure)
    return weight.detach()


@pytest.mark.parametrize("option", each(options_of("optimizer"), "optimizer"))
def test_complex_weights_move_as_pairs_of_real_numbers_or_are_refused(option: str) -> None:
    model, words = nn.Module(), ["optimizer.name=lamb"] if option == "timm" else []
    start = torch.randn(4, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
    model.weight = nn.Parameter(start.clone())
    if option in REFUSE_COMPLEX:
        with pytest.raises(ConfigError, match=r"^optimizer: .*omplex"):
            check_option(option, model, UNLIMITED, *words)
        return
    check_option(option, model, UNLIMITED, *words)
    pairs = moved(option, words, torch.view_as_real(start))
    torch.testing.assert_close(torch.view_as_real(moved(option, words, start)), pairs, rtol=1e-5, atol=1e-6)
    assert (pairs - torch.view_as_real(start)).abs().max() > 1e-4


@pytest.mark.parametrize("limit", ["max_norm", "max_value", "agc"])
@pytest.mark.parametrize("kind", ["sparse", "complex"])
def test_a_limit_that_cannot_clip_the_gradients_of_model_is_refused_by_its_key(limit: str, kind: str) -> None:
    model: Any = nn.Embedding(100, 30, sparse=kind == "sparse")
    if kind == "complex":
        model.weight = nn.Parameter(model.weight.detach().to(torch.complex64))
    clipping = Clipping(**{limit: 0.1})
    works = limit == "max_norm" or (limit, kind) == ("agc", "complex")
    with nullcontext() if works else pytest.raises(ConfigError, match=f"^{clipping.key}: "):
        check_option("sgd", model, clipping)


def test_complex_gradients_cannot_be_scaled() -> None:
    model: Any = nn.Module()
    for dtype in (torch.float32, torch.complex64):
        model.weight = nn.Parameter(torch.ones(2, 2, dtype=dtype))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with nullcontext() if dtype is torch.float32 else pytest.raises(ConfigError, match=r"^precision: "):
            check_made(optimizer_node("sgd"), model, optimizer, scales_loss=True)


OWN = """
import torch

class Own(torch.optim.SGD):
    def __init__(self, params, *, lr, fault):
        super().__init__(params, lr=lr)
        self.fault = fault

    def state_dict(self):
        return {**super().state_dict(), "rule": min if self.fault == "save" else None}

    def load_state_dict(self, state):
        if self.fault == "restore":
            raise KeyError("rule")
        super().load_state_dict(state)
"""


@pytest.mark.parametrize(
    ("fault", "reason"), [("save", "rule cannot be saved"), ("restore", "'rule'"), ("null", "")]
)
def test_a_state_that_cannot_be_saved_or_restored_is_refused(
    fault: str, reason: str, train: Train, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workdir / "own_optimizer.py").write_text(OWN)
    option = workdir / "conf" / "optimizer" / "own.yaml"
    option.parent.mkdir(parents=True)
    option.write_text(f"_target_: own_optimizer.Own\n_partial_: true\nlr: 0.1\nfault: {fault}\n")
    words: Any = (
        "tracker=local",
        "duration=1",
        "model.hidden=[8]",
        "optimizer=own",
        "allow_targets=[own_optimizer]",
    )
    folder = train(*words, status=2 if reason else 0)
    assert folder.exists() == (not reason)
    if reason:
        assert f"error: optimizer: Own cannot train this model: {reason}" in capsys.readouterr().err


@pytest.mark.extension
@pytest.mark.parametrize("name", ["adahessian", "lookahead_adahessian"])
def test_timm_optimizers_that_cannot_train_are_refused(
    name: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del workdir
    assert cli.main(["preview", "optimizer=timm", f"optimizer.name={name}"]) == 2
    assert capsys.readouterr().err.startswith("error: optimizer")
