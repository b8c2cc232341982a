"""Runs as a user starts them, in this process or in one of their own."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Set before torch is imported, because the workers of pytest-xdist share the cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from hydrant import cli

pytest_plugins = ["wandb_fixtures"]


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def process_state() -> dict[str, Any]:
    """What a run in a process of others, such as a notebook, must leave as it was."""
    return {
        "sys.argv": list(sys.argv),
        "sys.exit": sys.exit,
        "sys.excepthook": sys.excepthook,
        "variables": {k: v for k, v in os.environ.items() if k.startswith(("WANDB", "HYDRA"))},
        "signal handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "optimizer hooks": [list(_global_optimizer_pre_hooks), list(_global_optimizer_post_hooks)],
        "profiler": torch.autograd.profiler._is_profiler_enabled,
    }


@pytest.fixture(autouse=True)
def _process_is_left_as_it_was() -> Iterator[None]:
    """Fail where a test leaves something behind that the next run in this process would notice."""
    before = process_state()
    yield
    assert process_state() == before


@pytest.fixture(autouse=True)
def _restore_torch_settings() -> Iterator[None]:
    """Restore the settings of torch that a run leaves in its process: number formats, determinism, compiled code."""
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
