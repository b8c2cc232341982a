"""A trained run for the commands that read one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def trained(train: Callable[..., Path]) -> Path:
    """The folder of a convolutional network after 12 updates, with the checkpoints of updates 6 and 12."""
    words = ("tracker=local", "duration=12", "log_every=1", "eval_every=6", "save_every=6")
    return train(*words, "model=convnet", "model.widths=[8,16]", "keep_last=5")
