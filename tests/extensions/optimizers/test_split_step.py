"""Ranks that share the matrices of a Muon optimizer make the updates of a rank that has them all. Real ranks, gloo."""

import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm.optim.muon
import torch
import torch.distributed as dist
import torch.optim._muon
from configs import checked, optimizer_node
from faulty_model import TWO_RANKS
from run_folders import assert_same_state, training, weights
from spawned import spawn
from torch import Tensor, nn
from torch.optim import Optimizer
from training_runs import run_command, train_in_child

from hydrant.config.instantiate import instantiate, instantiate_node
from hydrant.errors import ConfigError
from hydrant.extensions.optimizers.split_step import SplitStep, assign
from hydrant.optimizers.kernels import OptimizerStep
from hydrant.training.distributed.world import World

NUM_RANKS, NUM_UPDATES = 3, 5
CASES: dict[str, dict[str, Any]] = {
    "muon": optimizer_node("muon"),
    "muon with Polar Express": {
        **optimizer_node("muon"),
        "kwargs": {"ns_coefficients": "polar_express", "adjust_lr_fn": "original"},
    },
    "adamuon": {**optimizer_node("muon"), "name": "adamuon"},
    "torch_muon": optimizer_node("torch_muon"),
    "normuon": optimizer_node("normuon"),
}


class Case:
    """An optimizer over matrices of several shapes, biases and a filter in two groups."""

    def __init__(self, node: dict[str, Any], world: World | None) -> None:
        generator = torch.Generator().manual_seed(0)
        shapes = ((8, 6), (6, 12), (8,), (16, 16), (5, 7), (4, 8), (4, 2, 3, 3))
        self.parameters = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
        self.parameters[-1].data = self.parameters[-1].data.to(memory_format=torch.channels_last)
        self.parameters.append(nn.Parameter(torch.ones(3, 3)))  # has never a gradient
        groups = [{"params": self.parameters[:3]}, {"params": self.parameters[3:], "lr": 0.3}]
        self.optimizer: Optimizer = instantiate_node({**node, "lr": 0.1, "weight_decay": 0.1})(groups)
        self.step: OptimizerStep = (
            OptimizerStep(self.optimizer) if world is None else SplitStep(self.optimizer, world)
        )

    def update(self, num_updates: int) -> None:
        """Make an update with another lr and momentum than the last one. Its gradients are a function of its number."""
        generator = torch.Generator().manual_seed(100 + num_updates)
        gradients = [torch.randn(p.shape, generator=generator) for p in self.parameters[:-1]]
        for p, gradient in zip(self.parameters, gradients, strict=False):
            p.grad = gradient.clone()
        for position, group in enumerate(self.optimizer.param_groups):
            group["lr"] = 0.1 / (1 + num_updates) + position
            if "momentum" in group:
                group["momentum"] = 0.9 + 0.01 * num_updates
        self.step()
        for p, gradient in zip(self.parameters, gradients, strict=False):
            assert p.grad is not None
            assert torch.equal(p.grad, gradient)

    def state(self) -> dict[str, Any]:
        return {
            "weights": [p.detach().clone() for p in self.parameters],
            "optimizer": self.optimizer.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        for p, value in zip(self.parameters, state["weights"], strict=True):
            p.data.copy_(value)
        self.optimizer.load_state_dict(state["optimizer"])


class Counted:
    """Counts the matrices that a process orthogonalises, by shape."""

    def __init__(self) -> None:
        self.counts = Counter[tuple[int, ...]]()
        for module, name in (
            (timm.optim.muon, "zeropower_via_newtonschulz"),
            (torch.optim._muon, "_zeropower_via_newtonschulz"),
        ):
            setattr(module, name, self._counting(getattr(module, name)))

    def _counting(self, function: Any) -> Any:
        def counting(matrix: Tensor, *arguments: Any, **named: Any) -> Tensor:
            self.counts[tuple(matrix.shape)] += 1
            return function(matrix, *arguments, **named)

        return counting


def _rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=NUM_RANKS)
    world = World(rank, rank, NUM_RANKS, torch.device("cpu"))
    counted, found = Counted(), {}
    for name, node in CASES.items():
        case = Case(node, world)
        case.update(0)
        counted.counts.clear()
        case.update(1)
        counts = dict(counted.counts)
        half = case.state()
        resumed = Case(node, world)
        resumed.load(half)
        for num_updates in range(2, NUM_UPDATES):
            resumed.update(num_updates)
        found[name] = {"counts": counts, "state": resumed.state()}
    torch.save(found, Path(folder) / f"found_{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """What each rank has found."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, folder, num_ranks=NUM_RANKS)
        files = (Path(folder) / f"found_{rank}.pt" for rank in range(NUM_RANKS))
        return [torch.load(file, weights_only=False) for file in files]


@pytest.mark.parametrize("name", CASES)
def test_the_weights_and_the_state_of_each_rank_are_those_of_one_rank(
    name: str, found: list[dict[str, Any]]
) -> None:
    """Bit for bit; with two groups, scheduled fields, and after a restart."""
    plain = Case(CASES[name], None)
    for num_updates in range(NUM_UPDATES):
        plain.update(num_updates)
    for rank in found:
        assert_same_state(rank[name]["state"], plain.state())


@pytest.mark.parametrize("name", CASES)
def test_each_matrix_is_orthogonalised_on_exactly_one_rank(name: str, found: list[dict[str, Any]]) -> None:
    counts = [Counter(rank[name]["counts"]) for rank in found]
    has_filter = "torch" not in name and name != "normuon"
    assert sum(counts, Counter()) == Counter(
        {shape: 1 for shape in [(8, 6), (6, 12), (16, 16), (5, 7), (4, 8)] + [(4, 18)] * has_filter}
    )
    assert all(counts), "no rank is idle"


def test_ranks_have_about_the_same_work() -> None:
    shapes = [torch.Size((64, 64))] * 8 + [torch.Size((64, 256)), torch.Size((256, 64))]
    owners = assign(shapes, 4)
    work = Counter[int]()
    for shape, owner in zip(shapes, owners, strict=True):
        work[owner] += shape.numel() // 64
    assert work == {rank: 4 * 64 for rank in range(4)}
    assert assign([], 2) == []
    assert assign([torch.Size((4, 4))], 3) == [0]


def test_only_an_eager_step_of_matrices_is_split() -> None:
    config, world = checked(("parallel=ddp", "parallel.split_muon=true")), World(0, 0, 2, torch.device("cpu"))
    ddp = instantiate(config, "parallel", world)
    matrices, plain = Case(CASES["normuon"], None).optimizer, torch.optim.AdamW([torch.ones(4, 4)])
    steps = [type(ddp.sharing_steps(OptimizerStep)(optimizer, ())) for optimizer in (matrices, plain)]
    assert steps == [SplitStep, OptimizerStep]
    for optimizer, compiles, remedy in (
        (plain, False, "use false"),
        (matrices, True, "compile.optimizer=false"),
    ):
        of_run, compilation = SimpleNamespace(steps=[optimizer]), SimpleNamespace(compiles_steps=compiles)
        with pytest.raises(ConfigError, match=rf"parallel\.split_muon.*{remedy}"):
            ddp.check(SimpleNamespace(optimizers=SimpleNamespace(whole=of_run), compilation=compilation))


@pytest.mark.slow
def test_a_run_on_two_ranks_is_the_same_with_split_work(workdir: Path) -> None:
    """A run without such an optimizer is refused before it starts."""
    words = ("tracker=local", "model.hidden=[16]", "duration=6", "log_every=1", "eval_every=3", "save_every=3",
             "limit_val_samples=37", *TWO_RANKS)  # fmt: skip
    whole = train_in_child(workdir, "whole", *words, "optimizer=muon")
    split = train_in_child(workdir, "split", *words, "optimizer=muon", "parallel.split_muon=true")
    assert_same_state(weights(split), weights(whole))
    assert_same_state(training(split)["optimization"], training(whole)["optimization"])
    refused = run_command("name=refused", *words, "parallel.split_muon=true", cwd=workdir)
    assert refused.returncode == 2
    assert "parallel.split_muon: splits the work of Muon" in refused.stderr
