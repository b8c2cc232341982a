"""Runs as a user starts them, in this process or in one of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from hydrant import cli

ROOT = Path(__file__).parents[1]
TINY = ("tracker=local", "data=synthetic", "data.input_shape=[3,8,8]", "data.num_classes=4",
        "data.num_samples=64", "data.num_val_samples=20", "global_batch_size=8", "duration=2",
        "log_every=1", "eval_every=2", "save_every=2")  # fmt: skip
"""Overrides for a run of two updates on tiny images."""


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
    torch.use_deterministic_algorithms(False)
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


@pytest.fixture
def train(workdir: Path) -> Callable[..., Path]:
    """Train in this process; asserts the exit status; returns the run folder."""

    def run(*overrides: str, name: str = "run", status: int = 0) -> Path:
        assert cli.main(["train", f"name={name}", *overrides]) == status
        return workdir / "outputs" / name

    return run


def command(*arguments: str) -> list[str]:
    """The command line of `python train.py ...`."""
    return [sys.executable, str(ROOT / "train.py"), *arguments]


def run_command(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python train.py ...` in a process of its own, to its end."""
    return subprocess.run(
        command(*arguments), cwd=cwd, env=os.environ | environment, capture_output=True, text=True, timeout=300, check=False
    )  # fmt: skip


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl without what no two runs share: the time and the pace."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    shared = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if k != "time" and not k.startswith("perf/")} for row in shared]


def weights(folder: Path, link: str = "last") -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoints" / link / "model.pt", weights_only=True)


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def assert_same_state(one: Any, other: Any) -> None:
    """Two nested states are equal bit for bit."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same_state(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same_state(a, b)
    else:
        assert one == other
