"""The stub shows faults of CUDA code that no run on a CPU can meet: each is planted in a model here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gpu
import pytest
import torch
import torch.distributed as dist

from hydrant.training import loop

pytestmark = pytest.mark.cuda(devices=2, stub=True)

Train = Callable[..., Path]
UserModule = Callable[[str, str], None]

MODELS = """
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn


class Sound(nn.Linear):
    def __init__(self, *, input_shape, num_classes):
        super().__init__(64, 10)

    def forward(self, images):
        return super().forward(images.flatten(1))


class LeftOnHost(Sound):
    def forward(self, images):
        return super().forward(images) + torch.ones(10)


class Waits(Sound):
    def forward(self, images):
        return super().forward(images / images.max().item())


class CopiesPageable(Sound):
    def forward(self, images):
        return super().forward(images) + torch.ones(10).to(images.device, non_blocking=True)


class SetsTimeout(Sound):
    def forward(self, images):
        dist.group.WORLD._get_backend(images.device)._set_default_timeout(timedelta(seconds=60))
        return super().forward(images)
"""
WORDS = ("tracker=local", "data=digits", "duration=6", "log_every=6", "eval_every=6", "allow_targets=[planted_faults]",
         "~model.hidden", "~model.dropout", "optimizer=sgd")  # fmt: skip


@pytest.fixture
def train_planted(
    train: Train, user_module: UserModule, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., gpu.Calls]:
    """`train_planted(model, *words, status=0)`: train; return the calls of one update between the log points."""
    user_module("planted_faults", MODELS)
    train_update = loop.train_update
    recorded: list[gpu.Calls] = []

    def record(trainer: loop.Trainer, *, is_last: bool) -> None:
        with gpu.calls() as calls:
            train_update(trainer, is_last=is_last)
        recorded.append(calls)

    def run(model: str, *words: str, status: int = 0) -> gpu.Calls:
        monkeypatch.setattr(loop, "train_update", record)
        train(*WORDS, f"model._target_=planted_faults.{model}", *words, status=status)
        return recorded[3] if len(recorded) > 3 else gpu.Calls()

    return run


def test_a_sound_model_trains_without_waits(train_planted: Callable[..., gpu.Calls]) -> None:
    calls = train_planted("Sound")
    assert calls.launches > 0
    assert (calls.waits, calls.pageable_copies, calls.illegal) == (0, 0, [])


def test_a_tensor_left_on_the_host(
    train_planted: Callable[..., gpu.Calls], capsys: pytest.CaptureFixture[str]
) -> None:
    train_planted("LeftOnHost", status=1)
    assert "Expected all tensors to be on the same device" in capsys.readouterr().err


def test_a_wait_too_many(train_planted: Callable[..., gpu.Calls]) -> None:
    assert train_planted("Waits").waits == 1


def test_a_pageable_copy(train_planted: Callable[..., gpu.Calls]) -> None:
    calls = train_planted("CopiesPageable")
    assert (calls.pageable_copies, calls.waits) == (1, 0)


def test_an_illegal_capture() -> None:
    x = torch.ones(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with gpu.calls() as calls, pytest.raises(RuntimeError, match="captur"), torch.cuda.graph(graph):
        x.sum().item()
    assert calls.illegal


@pytest.mark.slow
# torch's elastic agent does not close the files with the output of the ranks.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in.*hydrant-ranks:pytest.PytestUnraisableExceptionWarning"
)
def test_a_call_that_one_version_of_torch_lacks(
    train_planted: Callable[..., gpu.Calls], capfd: pytest.CaptureFixture[str]
) -> None:
    """The group has the class of torch's NCCL, and so its methods: torch 2.15 has another class than torch 2.11."""
    nccl = getattr(dist.distributed_c10d, "ProcessGroupNCCL2", dist.ProcessGroupNCCL)
    lacks = not hasattr(nccl, "_set_default_timeout")
    train_planted("SetsTimeout", "parallel.num_processes=2", status=int(lacks))
    assert ("has no attribute '_set_default_timeout'" in capfd.readouterr().err) == lacks
