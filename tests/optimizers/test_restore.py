"""An optimizer that is restored continues exactly."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from marks import each, slow
from repository import options_of
from run_folders import assert_same_state, rows, weights
from torch import nn
from torch.optim import ASGD, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop, Rprop
from training_runs import Train, whole_and_resumed

from hydrant.optimizers.kernels import restore


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


@pytest.mark.parametrize("optimizer", ["nadam", *slow("asgd")])
def test_a_run_with_bfloat16_weights_resumes_exactly(
    optimizer: str, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (*WIDE, "model.hidden=[16]", f"optimizer={optimizer}", "precision=bf16_true", "duration=8")
    whole, resumed = whole_and_resumed(train, monkeypatch, words, 3)
    assert_same_state(weights(resumed), weights(whole))


WIDE = ("tracker=local", "model.hidden=[256,256]", "duration=22", "log_every=5", "eval_every=11",
        "save_every=11")  # fmt: skip
OPTIONS = options_of("optimizer")
OTHERS = ("library", "sparse_adam")  # not chosen alone; for models with sparse gradients
FAST = ("muon",)


@pytest.mark.parametrize(
    "optimizer",
    [
        *each((o for o in OPTIONS if o in FAST), "optimizer"),
        *slow(*each((o for o in OPTIONS if o not in (*OTHERS, *FAST)), "optimizer")),
    ],
)
def test_every_option_resumes_exactly_at_a_usual_width(
    optimizer: str, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of small matrices do not show strides that differ from those before."""
    with torch.compiler.set_stance("force_eager"):  # kron compiles its update, which takes half a minute
        whole, resumed = whole_and_resumed(train, monkeypatch, (*WIDE, f"optimizer={optimizer}"), 13)
    assert rows(resumed) == rows(whole)
    assert_same_state(weights(resumed), weights(whole))


@pytest.mark.slow
@pytest.mark.extension
def test_kron_resumes_exactly_with_its_compiled_step(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process compiles in a later update, from weights and states that are restored."""
    words = (*WIDE, "optimizer=kron", "duration=16", "model.hidden=[32,48]")

    def in_new_process(*args: str, **kwargs: Any) -> Path:
        torch.compiler.reset()
        return train(*args, **kwargs)

    whole, resumed = whole_and_resumed(in_new_process, monkeypatch, words, 7)
    assert rows(resumed) == rows(whole)
    assert_same_state(weights(resumed), weights(whole))
