"""An optimizer that is restored continues exactly."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from run_folders import assert_same_state, weights
from torch import nn
from torch.optim import ASGD, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop, Rprop
from training_runs import Train, whole_and_resumed

from hydrant.optimizers.restore import restore


@pytest.mark.parametrize("kind", [ASGD, Adam, AdamW, Adamax, NAdam, RAdam, RMSprop, Rprop])
def test_state_of_bfloat16_weights_is_not_rounded(kind: Any) -> None:
    torch.manual_seed(0)
    gradients = torch.randn(6, 5, dtype=torch.bfloat16)

    def advance(optimizer: Any, parameter: nn.Parameter, start: int) -> None:
        for gradient in gradients[start : start + 3]:
            parameter.grad = gradient.clone()
            optimizer.step()

    whole = nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
    optimizer = kind([whole], lr=0.1)
    advance(optimizer, whole, 0)
    half = nn.Parameter(whole.detach().clone())
    restored = kind([half], lr=0.1)
    restore(restored, copy.deepcopy(optimizer.state_dict()))
    for key, value in optimizer.state[whole].items():
        assert restored.state[half][key].dtype == value.dtype
    for one, other in ((optimizer, whole), (restored, half)):
        advance(one, other, 3)
    torch.testing.assert_close(half, whole, rtol=0, atol=0)
    torch.testing.assert_close(restored.state[half], optimizer.state[whole], rtol=0, atol=0)


@pytest.mark.parametrize("optimizer", ["nadam", "asgd"])
def test_a_run_with_bfloat16_weights_resumes_exactly(
    optimizer: str, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (
        "tracker=local",
        "model.hidden=[16]",
        f"optimizer={optimizer}",
        "precision=bf16_true",
        "duration=8",
    )
    whole, resumed = whole_and_resumed(train, monkeypatch, words, 3)
    assert_same_state(weights(resumed), weights(whole))
