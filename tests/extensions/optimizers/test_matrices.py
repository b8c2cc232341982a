"""An optimizer for matrices and AdamW for the rest look like one optimizer; the format of matrix products."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from configs import optimizer_node
from run_folders import rows, summary
from timm.optim.muon import _COEFFICIENTS
from torch import Tensor, nn

from hydrant import cli
from hydrant.config.instantiate import instantiate_node
from hydrant.extensions.optimizers import timm_optimizer
from hydrant.optimizers.kernels import with_fastest_kernel


def format_of(optimizer: torch.optim.Optimizer) -> str:
    return optimizer.param_groups[0]["dtype"]


@pytest.mark.parametrize("option", ["torch_muon", "normuon"])
def test_the_other_weights_are_updated_by_a_fused_kernel(option: str) -> None:
    build = with_fastest_kernel(instantiate_node(optimizer_node(option)))
    assert build([{"params": [nn.Parameter(torch.ones(3))]}]).param_groups[-1]["fused"] is True


@pytest.mark.parametrize("option", ["torch_muon", "normuon"])
def test_looking_for_a_state_finds_it_and_adds_none(option: str) -> None:
    """Each part keeps its states in a defaultdict, which adds one for every weight that it is asked for."""
    model = nn.Linear(4, 3)
    optimizer = instantiate_node(optimizer_node(option))([{"params": list(model.parameters())}])
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    saved = optimizer.state_dict()["state"]
    assert optimizer.state.get(nn.Parameter(torch.ones(2))) is None
    states = [optimizer.state.get(p) for p in (model.weight, model.bias)]
    assert [list(state) for state in states] == [list(saved[position]) for position in (0, 1)]
    assert optimizer.state_dict()["state"].keys() == saved.keys() == {0, 1}


COEFFICIENTS = {
    "muon": _COEFFICIENTS["quintic"],
    "torch_muon": 5 * [(3.4445, -4.775, 2.0315)],
    "normuon": 5 * [(3.4445, -4.775, 2.0315)],
}


def orthogonalized(matrix: Tensor, option: str) -> Tensor:
    """Return what the iteration of an option gives in float64, with rows of length 1."""
    x = matrix.double() / matrix.double().norm()
    for a, b, c in COEFFICIENTS[option]:
        products = x @ x.mT
        x = a * x + (b * products + c * products @ products) @ x
    return nn.functional.normalize(x)


def made(option: str, weight: nn.Parameter, **fields: Any) -> torch.optim.Optimizer:
    node = {**optimizer_node(option), "weight_decay": 0.0, "lr": 1.0, **fields}
    return instantiate_node(node)([{"params": [weight]}])


def error_of_an_update(option: str, optimizer: torch.optim.Optimizer, weight: nn.Parameter) -> float:
    before = weight.detach().clone()
    weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    moved = nn.functional.normalize((before - weight.detach()).double())
    return (moved - orthogonalized(weight.grad, option)).abs().max().item()


def set_capabilities(monkeypatch: pytest.MonkeyPatch, **has: bool) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)


@pytest.mark.parametrize("option", COEFFICIENTS)
def test_matrices_are_orthogonalised_in_the_format_that_the_processor_has(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = nn.Parameter(torch.zeros(16, 24))
    set_capabilities(monkeypatch, avx512_bf16=True)
    rounded = made(option, weight)
    assert 1e-4 < error_of_an_update(option, rounded, weight) < 0.1
    set_capabilities(monkeypatch, avx2=True)
    exact = made(option, weight)
    assert (format_of(rounded), format_of(exact)) == ("bfloat16", "float32")
    assert error_of_an_update(option, exact, weight) < 1e-5
    assert format_of(made(option, weight, dtype="bfloat16")) == "bfloat16"


def test_the_muon_inside_a_lookahead_has_the_format_too() -> None:
    weight = nn.Parameter(torch.zeros(16, 24))
    rounded, exact = (
        timm_optimizer(
            [{"params": [weight]}], name="lookahead_muon", lr=1.0, weight_decay=0.0, kwargs={}, dtype=dtype
        )
        for dtype in ("bfloat16", "float32")
    )
    assert (format_of(rounded), format_of(exact)) == ("bfloat16", "float32")
    assert error_of_an_update("muon", exact, weight) < 1e-5 < error_of_an_update("muon", rounded, weight)


@pytest.mark.parametrize("option", COEFFICIENTS)
def test_what_continues_keeps_its_format(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = nn.Parameter(torch.zeros(16, 24))
    set_capabilities(monkeypatch)
    here = made(option, weight)
    error_of_an_update(option, here, weight)
    saved = here.state_dict()
    set_capabilities(monkeypatch, amx_bf16=True)
    elsewhere = made(option, weight)
    elsewhere.load_state_dict(saved)
    assert format_of(elsewhere) == "float32"
    for group in saved["param_groups"]:
        del group["dtype"]  # of a run from before there was a choice, which was in bfloat16
    here.load_state_dict(saved)
    torch.manual_seed(0)
    assert error_of_an_update(option, here, weight) > 1e-4


def test_the_record_and_compare_say_the_format(
    train: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "tracker=local",
        "model.hidden=[16]",
        "optimizer=muon",
        "duration=4",
        "log_every=1",
        "eval_every=4",
    )
    set_capabilities(monkeypatch, avx512_bf16=True)
    rounded = train(*words, name="rounded")
    set_capabilities(monkeypatch)
    plain = train(*words, name="plain")
    assert [summary(folder)["orthogonalized_in"] for folder in (rounded, plain)] == ["bfloat16", "float32"]
    assert "orthogonalised in float32, as optimizer.dtype=auto" in (plain / "train.log").read_text()
    chosen = train(*words, "optimizer.dtype=float32", name="chosen")
    assert "orthogonalised in float32\n" in (chosen / "train.log").read_text()
    assert "orthogonalised" not in (rounded / "train.log").read_text()
    assert rows(plain)[-1] == pytest.approx(rows(rounded)[-1], rel=0.05)
    assert rows(plain) != rows(rounded)
    capsys.readouterr()
    assert cli.main(["compare", str(rounded), str(plain)]) == 0
    assert "the number format of Muon's products differs" in capsys.readouterr().out
