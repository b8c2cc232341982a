"""What several test modules do: run the command, read a run folder, compare states."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hydrant.training import loop
from hydrant.training.checkpoint.tree import join
from hydrant.training.trainer import Trainer

ROOT = Path(__file__).parents[2]
DIGITS = (
    "tracker=local",
    "data=digits",
    "model.hidden=[16]",
    "global_batch_size=32",
    "eval_every=4",
    "save_every=4",
)
"""Overrides of a small run."""


def command(*arguments: str) -> list[str]:
    """The command line of `python train.py ...`."""
    return [sys.executable, str(ROOT / "train.py"), *arguments]


def run_command(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python train.py ...` in a process of its own, to its end."""
    return subprocess.run(
        command(*arguments),
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl without what no two runs share: the time and the pace."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    shared = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if k != "time" and not k.startswith("perf/")} for row in shared]


def weights(folder: Path, link: str = "last", part: str = "model") -> dict[str, torch.Tensor]:
    """What a run folder's checkpoint has as `model` or `ema`."""
    return load_file(folder / "checkpoints" / link / f"{part}.safetensors")


def training(folder: Path, link: str = "last") -> dict[str, Any]:
    """The rest of a run folder's checkpoint."""
    path = folder / "checkpoints" / link
    plain = json.loads((path / "training.json").read_text())
    return join(plain, load_file(path / "training.safetensors"))


def saved(folder: Path, part: str, link: str = "last") -> dict[str, Any]:
    """A part of a run folder's checkpoint: `model`, `ema` or `training`."""
    return training(folder, link) if part == "training" else weights(folder, link, part)


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


def interrupt_at(patch: pytest.MonkeyPatch, num_updates: int, times: int = 1) -> None:
    """Ctrl-C while update `num_updates` is made."""
    make_update = loop.make_update

    def interrupted(trainer: Trainer, *, measure: bool) -> Any:
        if trainer.state.num_updates + 1 == num_updates:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return make_update(trainer, measure=measure)

    patch.setattr(loop, "make_update", interrupted)


def whole_and_resumed(
    train: Any, monkeypatch: pytest.MonkeyPatch, words: Sequence[str], stop_at: int
) -> tuple[Path, Path]:
    """The folders of a run in one go and of the same run stopped by Ctrl-C while it made update `stop_at`."""
    whole = train(*words, name="whole")
    with monkeypatch.context() as patch:
        interrupt_at(patch, stop_at)
        train(*words, name="half", status=130)
    return whole, train(*words, name="half")
