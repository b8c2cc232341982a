"""Ranks in processes of their own: commands on them, and a small task trained on one or sharded over two."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from hydrant import cli
from hydrant.averaging import NoAveraging
from hydrant.checkpoint import Checkpoints, Retention
from hydrant.clipping import Clipping
from hydrant.compilation import EagerUpdate
from hydrant.distributed import World
from hydrant.metrics import Meter
from hydrant.optimization import Optimization, Share
from hydrant.parts import RunState
from hydrant.scheduling import FieldSchedules
from hydrant.state import content_of, restore


class Task(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3))
        self.temperature = nn.Parameter(torch.ones(1))  # fewer rows than ranks

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (self.model(inputs) * self.temperature.sum()).square().mean()


def make_run(world: World, *, is_sharded: bool) -> Any:
    """What saving and restoring look at of a run."""
    task = Task()
    if is_sharded:
        fully_shard(task.model[0])
        fully_shard(task)
    main = torch.optim.AdamW(task.parameters(), lr=0.1)
    share = Share(main, EagerUpdate(main), Clipping(None, None, None))
    scaler: Any = SimpleNamespace(state_dict=lambda: {}, load_state_dict=lambda state: None)
    optimization = Optimization({"main": share}, FieldSchedules({"main": main}, {}), scaler)
    return SimpleNamespace(task=task, model=task.model, optimization=optimization, precision=scaler, state=RunState(),
                           averaging=NoAveraging(None), meter=Meter(world.device), world=world)  # fmt: skip


def train(run: Any, num_updates: int) -> None:
    """Updates of plain numbers, which are the same on all ranks."""
    for _ in range(num_updates):
        run.state.num_updates += 1
        inputs = torch.randn(8, 5, generator=torch.Generator().manual_seed(run.state.num_updates))
        loss = run.task(inputs)
        loss.backward()
        [share] = run.optimization.shares.values()
        share.optimizer.step()
        share.optimizer.zero_grad()
        run.meter.add({"loss": loss.detach()}, 8)


def whole(run: Any) -> dict[str, Any]:
    """The state with every tensor in one piece."""

    def gathered(value: Any) -> Any:
        match value:
            case DTensor():
                return value.full_tensor().detach().clone()
            case torch.Tensor():
                return value.detach().clone()
            case dict():
                return {key: gathered(item) for key, item in value.items()}
            case list() | tuple():
                return [gathered(item) for item in value]
            case _:
                return value

    with content_of(run) as content:
        training = {key: item for key, item in content.training.items() if key != "ranks"}
        return gathered({"model": dict(content.model), "training": training})


def save(run: Any, folder: Path) -> Path:
    with Checkpoints(folder, Retention(9), in_background=True) as checkpoints, content_of(run) as content:
        checkpoints.save(run.state.num_updates, content, is_best=False)
    return folder / f"update_{run.state.num_updates:08d}"


def _rank(rank: int, folder: str) -> None:
    shared = Path(folder)
    dist.init_process_group("gloo", init_method=f"file://{shared}/store", rank=rank, world_size=2)
    world = World(rank, rank, 2, torch.device("cpu"))
    run = make_run(world, is_sharded=True)
    train(run, 3)
    save(run, shared / "two")
    found = {"saved": whole(run), "saved meters": world.gather(run.meter.state_dict())}
    train(run, 2)
    found["trained on"] = whole(run)
    save(make_run(world, is_sharded=False), shared / "replicated")
    dist.barrier()
    if rank == 0:
        (shared / "two_has_saved").touch()
    while not (shared / "one_has_saved").exists():
        time.sleep(0.02)
    again = make_run(world, is_sharded=True)
    restore(again, shared / "one" / "update_00000003")
    again.state.num_updates = 3
    found["restored"] = whole(again)
    found["restored meters"] = world.gather(again.meter.state_dict())
    train(again, 2)
    found["restored and trained on"] = whole(again)
    if rank == 0:
        torch.save(found, shared / "found.pt")
    dist.destroy_process_group()


def two_one_two(folder: Path) -> dict[str, Any]:
    """Trained and saved on two ranks, restored and saved on one, restored on two: the states on the way."""
    pair = mp.spawn(_rank, args=(str(folder),), nprocs=2, join=False)  # type: ignore[no-untyped-call]
    while not (folder / "two_has_saved").exists():
        if pair.join(timeout=0.02):
            raise AssertionError("the pair of ranks has ended")
    world = World(0, 0, 1, torch.device("cpu"))
    with world.group():
        run = make_run(world, is_sharded=False)
        restore(run, folder / "two" / "update_00000003")
        run.state.num_updates = 3
        on_one, meter = whole(run), run.meter.state_dict()
        save(run, folder / "one")
    (folder / "one_has_saved").touch()
    while not pair.join():
        pass
    return torch.load(folder / "found.pt", weights_only=False) | {"on one": on_one, "meter": meter}


def run_on_ranks(
    num_ranks: int, folder: Path, commands: Sequence[Sequence[str]], failing: Mapping[str, int] | None = None
) -> None:
    """`hydrant ...` for each command, one after the other, on the same ranks.

    Each is to succeed on all of them, but for the runs in `failing`, with their exit status.
    """
    words = [list(command) for command in commands]
    with tempfile.TemporaryDirectory() as meeting:
        arguments = (num_ranks, str(folder), f"file://{meeting}/store", words, dict(failing or {}))
        mp.spawn(_commands, args=arguments, nprocs=num_ranks)  # type: ignore[no-untyped-call]


def _commands(
    rank: int, num_ranks: int, folder: str, store: str, commands: list[list[str]], failing: dict[str, int]
) -> None:
    os.chdir(folder)
    sys.path.insert(0, folder)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
    patience = timedelta(seconds=60)  # a rank that is left alone fails
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=num_ranks, timeout=patience)
    for words in commands:
        assert cli.main(words) == failing.get(words[1].removeprefix("name="), 0), words
    dist.destroy_process_group()
