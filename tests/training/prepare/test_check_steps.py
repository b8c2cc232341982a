"""Every optimizer is tried before a run starts: it trains the weights, and its state is saved and restored."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
from configs import optimizer_node
from torch import nn
from training_runs import Train

from hydrant import cli
from hydrant.config.instantiate import instantiate_node
from hydrant.errors import ConfigError
from hydrant.training.prepare.check_steps import check_steps
from hydrant.training.update import Optimizers


def check_option(option: str, model: nn.Module) -> None:
    node = optimizer_node(option)
    optimizer = instantiate_node(node)([{"params": list(model.parameters())}])
    optimizers = cast("Optimizers", SimpleNamespace(entries={"main": SimpleNamespace(optimizer=optimizer)}))
    check_steps({"optimizers": {}, "optimizer": node}, model, optimizers, torch.device("cpu"))


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
        entries: Any = SimpleNamespace(entries={"main": SimpleNamespace(optimizer=optimizer)})
        with patch("hydrant.training.prepare.check_steps.instantiate_node", lambda _: make):
            check_steps({"optimizers": {}, "optimizer": {}}, model, entries, device)

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
def test_an_optimizer_must_take_the_gradients_of_the_model(
    option: str, sparse: bool, is_accepted: bool
) -> None:
    model = nn.Embedding(100, 30, sparse=sparse)
    before = model.weight.detach().clone()
    if is_accepted:
        check_option(option, model)
    else:
        with pytest.raises(
            ConfigError, match=r"^optimizer: \w+ cannot train this model: .*(dense|sparse) grad"
        ):
            check_option(option, model)
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None


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


@pytest.mark.parametrize("name", ["adahessian", "lookahead_adahessian", "kron", "kronc", "kronw"])
def test_timm_optimizers_that_cannot_train_are_refused(
    name: str, workdir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    del workdir
    monkeypatch.setattr("hydrant.optimizers.timm.find_spec", lambda _: None)
    assert cli.main(["preview", "optimizer=timm", f"optimizer.name={name}"]) == 2
    assert capsys.readouterr().err.startswith("error: optimizer")
