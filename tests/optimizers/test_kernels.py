"""The fused kernel updates the weights where nothing forbids it and the config leaves it open."""

import copy
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from operations import Names
from run_folders import summary
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from training_runs import Train

from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.optimizers.kernels import KERNEL_FIELDS, with_fastest_kernel
from hydrant.training.prepare.build import prepare

SHORT = ("tracker=local", "model.hidden=[16]", "duration=4", "log_every=2", "eval_every=4", "save_every=2")
TORCH: dict[str, type[Any]] = {n: getattr(torch.optim, n) for n in ("Adam", "AdamW", "SGD", "Adagrad")}


def kernel(factory: Any, *values: Tensor, sparse: bool = False, **group: Any) -> bool | None:
    parameters = [nn.Parameter(value) for value in values or [torch.ones(3, 4), torch.ones(3)]]
    with_sparse = {id(parameters[0])} if sparse else ()
    optimizer = with_fastest_kernel(partial(factory, lr=0.1), with_sparse)([{"params": parameters, **group}])
    return optimizer.param_groups[-1].get("fused")


@pytest.mark.parametrize("kind", TORCH.values(), ids=TORCH)
def test_torch_s_optimizers_update_with_their_fused_kernel(kind: Any) -> None:
    assert kernel(kind) is True


@pytest.mark.parametrize(
    "given", [{"fused": False}, {"foreach": True}, {"foreach": False}, {"differentiable": True}]
)
@pytest.mark.parametrize("by_group", [False, True])
def test_the_config_decides_first(given: dict[str, Any], by_group: bool) -> None:
    factory: Any = torch.optim.AdamW if by_group else partial(torch.optim.AdamW, **given)
    assert not kernel(factory, **(given if by_group else {}))


@pytest.mark.parametrize(
    "value", [torch.ones(3, 8)[:, ::2], torch.ones(3, 1).expand(3, 4), torch.ones(3, dtype=torch.complex64)],
    ids=["with gaps", "overlapping", "complex"],
)  # fmt: skip
def test_what_the_fused_kernel_cannot_read_is_updated_by_another(value: Tensor) -> None:
    """On the CPU, torch's kernel ignores strides: it would write next to the parameter."""
    assert kernel(torch.optim.AdamW, torch.ones(2), value) is None
    assert kernel(torch.optim.SGD, sparse=True) is None


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_both_layouts_of_images_are_fused(layout: torch.memory_format) -> None:
    assert kernel(torch.optim.AdamW, torch.ones(2, 3, 4, 4).to(memory_format=layout)) is True


@pytest.mark.parametrize("restored_at", [None, 1, 3])
@pytest.mark.parametrize("settings", [{}, {"nesterov": True, "weight_decay": 0.1}, {"dampening": 0.5}])
def test_weights_may_receive_their_first_gradient_late(
    settings: dict[str, Any], restored_at: int | None
) -> None:
    """As those of an expert that was not chosen before, also if the state is that of another kernel."""
    factory = partial(torch.optim.SGD, lr=0.1, momentum=0.9, **settings)
    early, late, *expected = [nn.Parameter(torch.ones(3)) for _ in range(4)]
    optimizer = with_fastest_kernel(factory)([{"params": [early, late]}])
    reference = factory(expected, foreach=False)
    for num_updates in range(4):
        if num_updates == restored_at:
            state = copy.deepcopy(reference.state_dict())
            group = optimizer.state_dict()["param_groups"][0]
            fields = {key: group[key] for key in KERNEL_FIELDS}
            optimizer.load_state_dict({**state, "param_groups": [state["param_groups"][0] | fields]})
        for parameters in ((early, late), expected):
            parameters[0].grad = torch.full((3,), 0.5)
            parameters[1].grad = torch.full((3,), 0.25) if num_updates >= 2 else None
        optimizer.step()
        reference.step()
    for parameter, other in zip((early, late), expected, strict=True):
        torch.testing.assert_close(parameter, other)
    assert optimizer.param_groups[0]["fused"] is (None if "dampening" in settings else True)


@pytest.mark.parametrize(("name", "operation"), [("AdamW", "_fused_adamw_"), ("Adagrad", "")])
def test_one_kernel_updates_all_weights_on_cuda(name: str, operation: str) -> None:
    """Adagrad has none there in torch 2.11."""
    with FakeTensorMode(allow_non_fake_inputs=True), Names() as names:
        parameters = [nn.Parameter(torch.empty(3, 4, device="cuda")) for _ in range(9)]
        optimizer = with_fastest_kernel(partial(TORCH[name], lr=0.1))([{"params": parameters}])
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        names.found.clear()
        optimizer.step()
    fused = [found for found in names.found if "_fused_" in found]
    assert len(fused) == bool(operation)
    assert all(f"aten.{operation}." in found for found in fused)


@pytest.mark.extension
@pytest.mark.parametrize("option", ["adam", "adamw", "sgd", "adagrad", "torch_muon"])
@pytest.mark.parametrize(("compiles", "fused"), [("true", None), ("false", True)])
def test_a_compiled_update_needs_no_kernel(option: str, compiles: str, fused: bool | None) -> None:
    """Torch would call the fused kernel instead of the compiled code."""
    words = (*SHORT, f"optimizer={option}", "compile=default", f"compile.optimizer={compiles}")
    [entry] = prepare(check(compose([*words, "compile.backend=aot_eager"]))).optimizers.entries.values()
    assert entry.optimizer.param_groups[-1]["fused"] is fused


def groups(folder: Path) -> list[dict[str, Any]]:
    """Return the parameter groups of the last checkpoint."""
    training = json.loads((folder / "checkpoints" / "last" / "training.json").read_text())
    return training["optimization"]["optimizers"]["main"]["param_groups"]


@pytest.mark.parametrize(("word", "fused"), [("fused=null", True), ("fused=false", False)])
def test_a_checkpoint_says_which_kernel_updated(word: str, fused: bool, train: Train) -> None:
    [group] = groups(train(*SHORT, "optimizer=adamw", f"optimizer.{word}"))
    assert group["fused"] is fused


def test_a_checkpoint_of_another_kernel_continues_with_that_of_the_config(train: Train) -> None:
    """As those of versions that left the kernel to torch, or one of `parallel=fsdp`."""
    words = (*SHORT, "optimizer=adamw")
    other = train(*words, "optimizer.fused=false", name="other")
    resume = f"resume={other}/checkpoints/update_00000002"
    continued = train(*words, resume, "resume_strict=false", name="continued")
    assert [group["fused"] for group in groups(continued)] == [True]
    assert summary(continued)["status"] == "finished"
