"""Training on a GPU computes what training on the CPU does; on the stub the same kernels compute, so bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpu
import pytest
import torch
from run_folders import rows

Train = Callable[..., Path]

DIGITS = (
    "tracker=local",
    "data=digits",
    "model.hidden=[32]",
    "model.dropout=0",
    "log_every=1",
    "eval_every=20",
)


def losses(folder: Path) -> list[tuple[Any, ...]]:
    keys = ("num_updates", "train/loss", "optim/grad_norm", "val/loss", "val/accuracy")
    return [tuple(row.get(key) for key in keys) for row in rows(folder)]


@pytest.mark.cuda(stub=True)
def test_training_equals_the_cpu(train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*DIGITS, "optimizer=adamw", "scheduler=cosine", "duration=60")
    with gpu.calls() as calls:
        on_gpu = train(*words, name="gpu")
    assert calls.launches > 60 * 20
    assert torch.cuda.max_memory_allocated() > 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert losses(on_gpu) == losses(train(*words, name="cpu"))


@pytest.mark.cuda(stub=True)
@pytest.mark.parametrize("recipe", ["tensorwise", pytest.param("rowwise", marks=pytest.mark.slow)])
def test_emulated_float8_equals_the_cpu(recipe: str, train: Train, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers are under autocast on both: torchao asks for autocast of CUDA alone."""
    words = (*DIGITS, "precision=fp8", f"precision.fp8={recipe}", "precision.emulate=true", "duration=10")
    on_gpu = train(*words, name="gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert losses(on_gpu) == losses(train(*words, name="cpu"))
