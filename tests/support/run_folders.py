"""Read run folders, and compare what runs have logged and saved."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from hydrant.training.checkpoint.storage import join


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl without times and speeds, which differ between equal runs."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "time" and not k.startswith("perf/")} for row in lines]


def rows_without_compile(folder: Path) -> list[dict[str, Any]]:
    """Return `rows` without the metrics of compilation, which eager and resumed runs lack."""
    return [{k: v for k, v in row.items() if not k.startswith("compile/")} for row in rows(folder)]


def training_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the rows that were logged in training, not in evaluation."""
    return [row for row in rows(folder) if "optim/lr" in row]


def assert_close_rows(
    one: Path, other: Path, rel: float = 1e-5, abs: float = 1e-6, read: Callable[[Path], Any] = rows
) -> None:
    """Assert that two runs logged the same, up to rounding."""
    for a, b in zip(read(one), read(other), strict=True):
        assert a.keys() == b.keys()
        for key in a:
            assert a[key] == pytest.approx(b[key], rel=rel, abs=abs), key


def saved_updates(checkpoints: Path) -> list[int]:
    """Return the updates of the checkpoints in a folder `checkpoints`."""
    return sorted(int(path.name[7:]) for path in checkpoints.glob("update_*"))


def weights(folder: Path, link: str = "last", part: str = "model") -> dict[str, torch.Tensor]:
    """Return the weights in a checkpoint of a run: those of the model, or their average (part `ema`)."""
    return load_file(folder / "checkpoints" / link / f"{part}.safetensors")


def training(folder: Path, link: str = "last") -> dict[str, Any]:
    """Return the training state in a checkpoint of a run: everything but the weights."""
    path = folder / "checkpoints" / link
    return join(json.loads((path / "training.json").read_text()), load_file(path / "training.safetensors"))


def saved(folder: Path, part: str, link: str = "last") -> dict[str, Any]:
    """Return a part of a run's checkpoint: `model`, `ema` or `training`."""
    return training(folder, link) if part == "training" else weights(folder, link, part)


def assert_same_state(one: Any, other: Any) -> None:
    """Assert that two nested states are equal bit for bit."""
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
