"""Every optimizer option, built from its YAML, converges and restores its state."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schedulefree
import torch
import torch.nn.functional as F
from configs import optimizer_node
from marks import each, of_extension, slow
from repository import options_of
from run_folders import assert_same_state, rows, weights
from torch import nn
from training_runs import Train, whole_and_resumed

from hydrant import seeding
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.config.groups import option_path
from hydrant.config.instantiate import instantiate_node
from hydrant.training.prepare.build import prepare

OPTIONS = options_of("optimizer")
SPARSE = ("sparse_adam",)
# Factors of lr for optimizers whose steps are small by design, or made for other scales.
LR_FACTORS = dict.fromkeys(("adadelta", "adagrad", "kron", "lion", "radam", "torch_muon"), 90.0)
LR_FACTORS |= dict.fromkeys(("lbfgs", "rprop", "prodigy", "shampoo"), 3.0)


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    with torch.compiler.set_stance("force_eager"):  # kron compiles its update, which takes half a minute
        yield


def build(option: str, parameters: list[nn.Parameter], lr_factor: float = 1.0) -> torch.optim.Optimizer:
    node = optimizer_node(option)
    node["lr"] *= lr_factor
    return instantiate_node(node)([{"params": parameters, "name": "all"}])


class Parabola(nn.Module):
    """`|w - 1|^2` over a matrix and a bias, or over the rows of a sparse embedding."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 3, sparse=sparse)
        nn.init.constant_(self.embedding.weight, 0.5)
        self.bias = None if sparse else nn.Parameter(torch.full((3,), 0.5))

    def forward(self) -> torch.Tensor:
        loss = (self.embedding(torch.arange(4)) - 1).square().mean()
        return loss if self.bias is None else loss + (self.bias - 1).square().mean()


def step(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = module()
        loss.backward()
        return loss

    optimizer.step(closure)  # type: ignore[arg-type]


@pytest.mark.parametrize("option", each(OPTIONS, "optimizer"))
def test_converges_on_a_parabola(option: str) -> None:
    model = Parabola(sparse=option in SPARSE)
    optimizer = build(option, list(model.parameters()), LR_FACTORS.get(option, 30.0))
    start, rates = float(model().detach()), [group["lr"] for group in optimizer.param_groups]
    for update in range(100):
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * (1 - update / 100)
        step(model, optimizer)
    assert float(model().detach()) < 0.1 * start


@pytest.mark.parametrize("option", each(OPTIONS, "optimizer"))
def test_a_restored_optimizer_continues_exactly(option: str) -> None:
    model = Parabola(sparse=option in SPARSE)
    optimizer = build(option, list(model.parameters()))
    for _ in range(3):
        step(model, optimizer)
    twin = copy.deepcopy(model)
    other = build(option, list(twin.parameters()))
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(3):
        step(model, optimizer)
        step(twin, other)
    for one, two in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(one, two)


def test_every_torch_optimizer_is_an_option() -> None:
    shipped = {
        name for name, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
    }  # fmt: skip
    texts = "".join(option_path("optimizer", option).read_text() for option in OPTIONS)
    # Muon takes matrices only.
    assert all(f"\n_target_: torch.optim.{name}\n" in texts for name in shipped - {"Muon"})


SHORT = ("tracker=local", "model.hidden=[16]", "duration=8", "log_every=1", "eval_every=4", "save_every=4")


@pytest.mark.parametrize("option", ["adamw", *slow("adam", "sgd", "adagrad")])
def test_fused_and_foreach_kernels_give_the_same_weights(option: str, train: Train) -> None:
    words = (*SHORT, f"optimizer={option}")
    plain = weights(train(*words, "optimizer.fused=false", "optimizer.foreach=false", name="plain"))
    for kernel in ("fused", "foreach"):
        other = weights(train(*words, f"optimizer.{kernel}=true", name=kernel))
        torch.testing.assert_close(other, plain, rtol=0, atol=1e-5)


@pytest.mark.parametrize("class_name", ["AdamWScheduleFree", *slow("SGDScheduleFree", "RAdamScheduleFree")])
def test_schedule_free_is_evaluated_with_its_average(
    class_name: str, train: Train, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It equals the loop in its documentation, which calls `train` and `eval`, and resumes bit for bit."""
    option = workdir / "conf" / "optimizer" / "schedule_free.yaml"
    option.parent.mkdir(parents=True)
    option.write_text(f"_target_: schedulefree.{class_name}\n_partial_: true\nlr: 0.01\n")
    words = (*SHORT, "optimizer=schedule_free", "scheduler=constant", "allow_targets=[schedulefree]")
    whole, half = whole_and_resumed(train, monkeypatch, words, 3)
    assert rows(whole) == rows(half)
    assert_same_state(weights(whole), weights(half))
    plan: Any = prepare(check(compose(words)))
    plan.task.to(plan.world.device)
    optimizer = getattr(schedulefree, class_name)(plan.task.model.parameters(), lr=0.01)
    stream = plan.data.train.stream(plan.spec)
    for n in range(8):
        optimizer.train()
        (batch,) = stream.micro_batches(n)
        seeding.seed_micro_step(0, n, 0, plan.world.device)
        optimizer.zero_grad()
        F.cross_entropy(plan.task.model(batch.inputs), batch.targets).backward()
        optimizer.step()
    optimizer.eval()
    assert_same_state(plan.task.model.cpu().state_dict(), weights(whole))


@pytest.mark.parametrize(
    "words",
    [
        *of_extension(
            *slow(*((("optimizer=timm", f"optimizer.name=lookahead_{name}"),) for name in ("adamw", "sgd")))
        ),
        ("optimizer=lookahead",),
    ],
)
def test_lookahead_resumes(
    words: tuple[str, ...], train: Train, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By timm's name, and by `_target_` in an option of the user."""
    option = workdir / "conf" / "optimizer" / "lookahead.yaml"
    option.parent.mkdir(parents=True)
    option.write_text(
        "_target_: timm.optim.create_optimizer_v2\n_partial_: true\nopt: lookahead_radam\nlr: 1e-3\n"
    )
    whole, half = whole_and_resumed(train, monkeypatch, (*SHORT, *words, "allow_targets=[timm.optim]"), 7)
    assert rows(whole) == rows(half)
    assert_same_state(weights(whole), weights(half))
