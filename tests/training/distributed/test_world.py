"""The process group of a run, and errors that travel between ranks."""

from __future__ import annotations

import pickle
import sys

import pytest
import torch
import torch.distributed as dist

from hydrant.errors import ConfigError, Interrupted, NonFiniteError
from hydrant.training.distributed import world
from hydrant.training.distributed.world import World


def test_the_process_group_restores_the_excepthook() -> None:
    """torch wraps the hook at each initialization, so the chain would grow with every run in a process."""
    hook = sys.excepthook
    for _ in range(2):
        with World(0, 0, 1, torch.device("cpu")).process_group():
            assert dist.is_initialized()
        assert sys.excepthook is hook
    with pytest.raises(ValueError, match="boom"), World(0, 0, 1, torch.device("cpu")).process_group():
        raise ValueError("boom")
    assert sys.excepthook is hook


def test_a_process_group_inside_another_is_that_group() -> None:
    with World(0, 0, 1, torch.device("cpu")).process_group():
        group = dist.group.WORLD
        with World(0, 0, 1, torch.device("cpu")).process_group():
            assert dist.group.WORLD is group
        assert dist.is_initialized()
    assert not dist.is_initialized()


def test_every_error_can_be_sent_to_other_ranks() -> None:
    class Local(Exception):
        """Cannot be pickled, because its class cannot be imported."""

    for error in (NonFiniteError("loss", 1, 2), Interrupted(15, 3), ConfigError("key", "message")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (type(error), str(error), vars(error))
    assert str(world._picklable(Local("boom"))) == "Local: boom"
    error = KeyError("a")
    assert world._picklable(error) is error


def test_more_ranks_than_gpus_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    world.check_gpus(2)
    with pytest.raises(ConfigError, match="num_processes: 3 ranks need as many GPUs, but there are 2; give"):
        world.check_gpus(3)
