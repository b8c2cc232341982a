"""Silent errors of torch.compile, and what Hydrant does about them; docs/internals/torch-compile.md lists them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from collectives import gradients_of_collectives
from run_folders import rows, summary
from torch import nn
from torch._dynamo.utils import counters
from training_runs import Train, UserModule

from hydrant.extensions.compile.compiled_task import Compile
from hydrant.training.distributed.world import World

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


def compilation(**settings: Any) -> Compile:
    return Compile(
        World(0, 0, 1, torch.device("cpu")),
        **{
            "mode": "default", "backend": "aot_eager", "fullgraph": True, "dynamic": None, "options": None,
            "scope": "task", "optimizer": False, "hyperparameters": "tensors", "evaluation": False, "check": True,
            "same_random": True, "cache_dir": None, "max_recompiles": None, "max_graph_breaks": None,
            "over_budget": "fail", "on_failure": "fail",
        }
        | settings,
    )  # fmt: skip


class Holder(nn.Module):
    """A task with a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.model(inputs)


@pytest.mark.parametrize("scope", ["task", "model"])
@pytest.mark.parametrize("model", [nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))])
def test_modules_of_torch_are_compiled(model: nn.Module, scope: str) -> None:
    """Up to torch 2.13 `module.compile()` compiles nothing of them."""
    task = Holder(model)
    compilation(scope=scope).apply(task, retains_graph=False)
    counters.clear()
    task(torch.randn(3, 4)).sum().backward()
    assert counters["stats"]["unique_graphs"] == 1


def test_blocks_of_torch_modules_share_a_graph(train: Train) -> None:
    words = ("tracker=local", "model.hidden=[64,64,64]", "model.dropout=0", "duration=2", "log_every=1")
    folder = train(*words, "compile=blocks", "compile.backend=aot_eager")
    # The first block may have its own graph, because its input needs no gradient.
    assert 1 <= summary(folder)["compile"]["graphs"] <= 2


@pytest.mark.parametrize("scope", ["task", "model"])
def test_a_parameter_unfrozen_after_compilation_gets_its_gradient(scope: str) -> None:
    """In torch 2.11 it gets none by default."""
    task = Holder(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    frozen: Any = task.model[0]
    frozen.requires_grad_(False)
    compilation(scope=scope).apply(task, retains_graph=False)
    for _ in range(2):
        task(torch.randn(3, 4)).sum().backward()
    assert frozen.weight.grad is None
    frozen.requires_grad_(True)
    task(torch.randn(3, 4)).sum().backward()
    assert frozen.weight.grad is not None


REGIONS = """
import timm, torch

def model(**arguments):
    net = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=10)
    kind = type(net.blocks[0])
    region = type("Region", (kind,), {"forward": torch.compiler.nested_compile_region(kind.forward)})
    for block in net.blocks:
        block.__class__ = region
    return net
"""


@pytest.mark.slow
@pytest.mark.skipif(TORCH < (2, 14), reason="its gradients are right")
def test_wrong_gradients_of_nested_regions_are_detected(
    train: Train, user_module: UserModule, capsys: pytest.CaptureFixture[str]
) -> None:
    """Inductor computes them on CPUs."""
    user_module("regions", REGIONS)
    words = (
        "experiment=vit_tiny_fake",
        "model._target_=regions.model",
        "allow_targets=[regions]",
        "tracker=local",
    )
    folder = train(*words, "compile=default", status=1)
    assert "the gradients differ between compiled and eager" in capsys.readouterr().err.splitlines()[-1]
    assert not any("train/loss" in row for row in rows(folder))


@pytest.mark.slow
def test_gradients_of_collectives_eager_and_compiled(tmp_path: Path) -> None:
    """Gradients of sum(2 x) on two ranks, with x summed over them: eager, and as one graph of aot_eager."""
    gradients = gradients_of_collectives(tmp_path)
    assert gradients["in_place"] == {"eager": 2.0, "compiled": 4.0}  # eager autograd ignores it
    assert gradients["under_no_grad"]["eager"] == gradients["under_no_grad"]["compiled"]
    differentiable = {"eager": 4.0, "compiled": 0.0 if TORCH < (2, 12) else "refused"}
    assert gradients["differentiable"] == differentiable
