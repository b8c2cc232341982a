"""Muon updates matrices, and AdamW the rest; each optimizer of timm continues from its saved state."""

from functools import partial

import pytest
import timm.optim
import torch
from optimizer_states import check_continues, some_fast
from run_folders import summary
from torch import nn
from training_runs import Train

from hydrant.extensions.optimizers import MuonWithAdamW, timm_optimizer


def test_torch_muon_updates_matrices_with_muon_and_the_rest_with_adamw() -> None:
    torch.manual_seed(0)
    model, reference = (nn.Linear(4, 3) for _ in range(2))
    reference.load_state_dict(model.state_dict())
    settings = {"lr": 0.01, "weight_decay": 0.1}
    combined = MuonWithAdamW(model.parameters(), **settings, momentum=0.9, nesterov=True, ns_steps=5,
                             ns_coefficients=(2.0, -1.5, 0.5), adjust_lr_fn="match_rms_adamw", betas=(0.9, 0.99),
                             dtype="bfloat16", eps=1e-8, fused=None)  # fmt: skip
    muon = torch.optim.Muon([reference.weight], **settings, momentum=0.9, ns_coefficients=(2.0, -1.5, 0.5),
                            adjust_lr_fn="match_rms_adamw")  # fmt: skip
    adamw = torch.optim.AdamW([reference.bias], **settings, betas=(0.9, 0.99))
    inputs = torch.randn(8, 4)
    for _ in range(5):
        for module, optimizers in ((model, [combined]), (reference, [muon, adamw])):
            for parameter in module.parameters():
                parameter.grad = None
            module(inputs).square().mean().backward()
            for optimizer in optimizers:
                optimizer.step()
    assert torch.equal(model.weight, reference.weight)
    assert torch.equal(model.bias, reference.bias)


def timm_names() -> list[str]:
    """Return the names of timm's optimizers that need no other device or package."""
    return [str(n) for n in timm.optim.list_optimizers() if not str(n).startswith(("bnb", "fused", "kron"))]


@pytest.mark.parametrize("name", some_fast([*{*timm_names()} - {"adahessian"}]))
def test_a_saved_optimizer_of_timm_continues_exactly(name: str) -> None:
    check_continues(partial(timm_optimizer, weight_decay=0.01, kwargs={}), name)


def test_every_field_of_torch_muon_can_be_set_and_scheduled(train: Train) -> None:
    folder = train("tracker=local", "model.hidden=[8]", "duration=4", "optimizer=torch_muon",
                   "+scheduler@schedules.momentum=linear", "+scheduler@schedules.betas.0=constant",
                   "+param_groups.patterns.first.match=.*0", "+param_groups.patterns.first.momentum=0.5")  # fmt: skip
    assert summary(folder)["status"] == "finished"
