"""Runs as a user starts them, in this process or in one of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # before torch: threads that wait for each other are slower here

import pytest
import torch

from hydrant import cli


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _as_found() -> Iterator[None]:
    """What a run sets for its process is put back."""
    matmul, tf32 = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = tf32
    if torch.are_deterministic_algorithms_enabled():
        torch.use_deterministic_algorithms(False)
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
        torch.compiler.set_stance("default")


@pytest.fixture
def train(workdir: Path) -> Callable[..., Path]:
    """Train in this process; asserts the exit status; returns the run folder."""

    def run(*overrides: str, name: str = "run", status: int = 0) -> Path:
        assert cli.main(["train", f"name={name}", *overrides]) == status
        return workdir / "outputs" / name

    return run
