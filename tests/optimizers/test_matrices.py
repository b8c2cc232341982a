"""An optimizer for matrices and AdamW for the rest look like one optimizer."""

from __future__ import annotations

import pytest
import torch
from configs import optimizer_node
from torch import nn

from hydrant.config.instantiate import instantiate_node


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
