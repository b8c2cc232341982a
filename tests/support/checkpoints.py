"""Checkpoints with little content, for tests of the checkpoint package."""

from pathlib import Path

import torch

from hydrant.training.checkpoint.folder import Retention
from hydrant.training.checkpoint.manager import CheckpointManager
from hydrant.training.checkpoint.storage import Checkpoint


def content(value: float = 1.0) -> Checkpoint:
    training = {"state": {"num_updates": 1, "best": None}, "sums": torch.full((2,), value)}
    return Checkpoint({"w": torch.full((3,), value)}, training)


def save(path: Path, *updates: int, best: tuple[int, ...] = (), keep: Retention | None = None) -> None:
    """Save checkpoints of these updates, in a process group of one rank."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with CheckpointManager(path, keep or Retention(2)) as checkpoints:
        for num_updates in updates:
            checkpoints.save(num_updates, content(num_updates), is_best=num_updates in best)


def names(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir())


def change_last_bit(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
