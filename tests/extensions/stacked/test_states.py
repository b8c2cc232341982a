"""The states of the optimizers of all lanes."""

import torch
from torch import nn

from hydrant.extensions.stacked.lanes import StackedWeights, stack_slots


def test_the_state_of_each_lane_keeps_its_strides() -> None:
    """A step of a lane alone would round differently with others."""
    weights = StackedWeights([[nn.Parameter(torch.randn(3, 4))] for _ in range(2)])
    optimizers = [torch.optim.SGD(of_lane) for of_lane in weights.parameters]
    bases = [torch.randn(5, 3).t() for _ in optimizers]
    for optimizer, base in zip(optimizers, bases, strict=True):
        optimizer.state[optimizer.param_groups[0]["params"][0]] = {"basis": base, "step": torch.tensor(1.0)}
    (slot,) = stack_slots(optimizers, weights, is_flat=False)
    slot.show()
    assert slot.state["basis"].shape == (2, 3, 5)
    for optimizer, base in zip(optimizers, bases, strict=True):
        (state,) = optimizer.state.values()
        assert state["basis"].stride() == base.stride()
        assert torch.equal(state["basis"], base)
        assert state["basis"]._base is slot.state["basis"]
