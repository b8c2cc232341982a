"""Faults of CUDA code that no run on a CPU can meet: those of a run on the second GPU, and those that the stub finds in
a model, whose tests are of the stub itself.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpu
import pytest
import torch
import torch.distributed as dist
from run_folders import rows, weights

import hydrant
from hydrant import seeding
from hydrant.training import loop
from hydrant.training.checkpoint import storage
from hydrant.training.distributed.world import World

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


@pytest.mark.parametrize(
    ("model", "waits_and_copies"), [("Sound", (0, 0)), ("Waits", (1, 0)), ("CopiesPageable", (0, 1))]
)
def test_a_wait_too_many_and_a_pageable_copy(
    model: str, waits_and_copies: tuple[int, int], train_planted: Callable[..., gpu.Calls]
) -> None:
    calls = train_planted(model)
    assert calls.launches > 0
    assert (calls.waits, calls.pageable_copies, calls.illegal) == (*waits_and_copies, [])


def test_a_tensor_left_on_the_host(
    train_planted: Callable[..., gpu.Calls], capsys: pytest.CaptureFixture[str]
) -> None:
    train_planted("LeftOnHost", status=1)
    assert "Expected all tensors to be on the same device" in capsys.readouterr().err


def test_an_illegal_capture() -> None:
    x = torch.ones(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with gpu.calls() as calls, pytest.raises(RuntimeError, match="captur"), torch.cuda.graph(graph):
        x.sum().item()
    assert calls.illegal


@pytest.mark.slow
def test_a_call_that_one_version_of_torch_lacks(
    train_planted: Callable[..., gpu.Calls], capfd: pytest.CaptureFixture[str]
) -> None:
    """The group has the class of torch's NCCL, and so its methods: torch 2.15 has another class than torch 2.11."""
    nccl = getattr(dist.distributed_c10d, "ProcessGroupNCCL2", dist.ProcessGroupNCCL)
    lacks = not hasattr(nccl, "_set_default_timeout")
    train_planted("SetsTimeout", "parallel.num_processes=2", status=int(lacks))
    assert ("has no attribute '_set_default_timeout'" in capfd.readouterr().err) == lacks


WORDS_OF_MLP = ("tracker=local", "data=digits", "model.hidden=[16]", "model.dropout=0.5", "duration=6", "log_every=1",
                "eval_every=6", "save_every=6")  # fmt: skip


@pytest.fixture
def second_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """Let a run of one rank use the second GPU, as a later rank does; CUDA is initialized before it."""
    for number in range(2):
        torch.cuda.manual_seed_all(number)
        torch.randn(1, device=f"cuda:{number}")
    monkeypatch.setenv("LOCAL_RANK", "1")
    World.from_launcher().set_device()  # as a rank does when it meets the others
    yield torch.device("cuda:1")
    torch.cuda.set_device(0)


@pytest.mark.slow
def test_a_run_on_the_second_gpu_equals_that_on_the_first(
    train: Train, second_gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also its dropout; it leaves the first one alone, and the thread that writes checkpoints does too."""
    used, write = set[int](), storage.write

    def note(*args: Any) -> None:
        used.add(torch.cuda.current_device())
        write(*args)

    monkeypatch.setattr(storage, "write", note)
    before = torch.cuda.memory_stats(0)["allocation.all.allocated"]
    on_second = train(*WORDS_OF_MLP, name="second")
    assert used == {torch.cuda.current_device()} == {second_gpu.index}
    assert torch.cuda.memory_stats(0)["allocation.all.allocated"] == before
    monkeypatch.delenv("LOCAL_RANK")
    torch.cuda.set_device(0)
    on_first = train(*WORDS_OF_MLP, name="first")
    assert rows(on_second) == rows(on_first)
    assert weights(on_second).keys() == weights(on_first).keys()
    assert all(torch.equal(value, weights(on_first)[name]) for name, value in weights(on_second).items())


def test_drawn_numbers_are_those_of_the_run_s_gpu(second_gpu: torch.device) -> None:
    where = (0, 3, 1, second_gpu)
    draws: dict[str, Callable[[], object]] = {
        "none": lambda: None,
        "on the first GPU": lambda: torch.randn(2, device="cuda:0"),
        "on the CPU": lambda: torch.randn(2),
        "on the GPU": lambda: torch.nn.functional.dropout(torch.ones(64, device=second_gpu)),
    }
    drawn = dict[str, bool]()
    for name, draw in draws.items():
        seeding.seed_micro_step(*where)
        draw()
        drawn[name] = seeding.has_drawn(*where)
    assert drawn == {"none": False, "on the first GPU": False, "on the CPU": True, "on the GPU": True}


@pytest.mark.usefixtures("second_gpu", "workdir")
def test_a_call_from_python_leaves_the_generators_of_all_gpus() -> None:
    before = [torch.cuda.get_rng_state(number) for number in range(2)]
    hydrant.train(hydrant.compose([*WORDS_OF_MLP, "name=run"]))
    after = [torch.cuda.get_rng_state(number) for number in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
