"""Ranks in child processes: commands that run on them, and checkpoints of a small task sharded over two ranks."""

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
from shared_configs import SharingComposer
from spawned import spawn
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from hydrant import cli
from hydrant.config import compose
from hydrant.data.base import ON_HOST
from hydrant.data.splits import DataIdentity
from hydrant.optimizers.ema import NoAveraging
from hydrant.optimizers.kernels import Clipping, OptimizerStep
from hydrant.optimizers.scheduled_fields import FieldSchedules
from hydrant.training.checkpoint.folder import Retention
from hydrant.training.checkpoint.manager import CheckpointManager
from hydrant.training.checkpoint.storage import SavedCheckpoint
from hydrant.training.distributed.world import World
from hydrant.training.hooks import Hooks
from hydrant.training.metrics import Meter
from hydrant.training.saved_run import checkpoint_content, restore
from hydrant.training.trainer import TrainState
from hydrant.training.update import OptimizerEntry, Optimizers


class Task(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Tanh(), nn.Linear(7, 3))
        self.temperature = nn.Parameter(torch.ones(1))  # fewer rows than ranks

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (self.model(inputs) * self.temperature.sum()).square().mean()


def make_run(world: World, *, is_sharded: bool) -> Any:
    """Return the parts of a run that saving and restoring use."""
    task = Task()
    if is_sharded:
        mesh = init_device_mesh(world.device.type, (world.world_size,))  # else of CUDA, where there is one
        fully_shard(task.model[0], mesh=mesh)
        fully_shard(task, mesh=mesh)
    main = torch.optim.AdamW(task.parameters(), lr=0.1)
    entry = OptimizerEntry(main, OptimizerStep(main), Clipping(None, None, None))
    scaler: Any = SimpleNamespace(
        scales_loss=False, state_dict=lambda: {}, load_state_dict=lambda state: None
    )
    optimizers = Optimizers({"main": entry}, FieldSchedules({"main": main}, {}), scaler)
    plan = SimpleNamespace(world=world, precision=scaler, averaging=NoAveraging(None), hooks=Hooks({}), config={},
                           spec=ON_HOST, identity=DataIdentity(None, {}, {"train": 8, "val": 8}, {}, {"val": 8}),
                           early_stopping=SimpleNamespace(judges_by=["val/loss", "min"]))  # fmt: skip
    return SimpleNamespace(plan=plan, task=task, model=task.model, optimizers=optimizers, state=TrainState(),
                           carried=[], losses={}, meters={"": Meter(world.device)}, stream=None)  # fmt: skip


def train(run: Any, num_updates: int) -> None:
    """Train on inputs that are the same on all ranks."""
    for _ in range(num_updates):
        run.state.num_updates += 1
        inputs = torch.randn(8, 5, generator=torch.Generator().manual_seed(run.state.num_updates))
        loss = run.task(inputs)
        loss.backward()
        [entry] = run.optimizers.entries.values()
        entry.optimizer.step()
        entry.optimizer.zero_grad()
        run.meters[""].add({"loss": loss.detach()}, 8)


def full_state(run: Any) -> dict[str, Any]:
    """Return the state of a run with every sharded tensor gathered."""

    def gather(value: Any) -> Any:
        match value:
            case DTensor():
                return value.full_tensor().detach().clone()
            case torch.Tensor():
                return value.detach().clone()
            case dict():
                return {key: gather(item) for key, item in value.items()}
            case list() | tuple():
                return [gather(item) for item in value]
            case _:
                return value

    with checkpoint_content(run) as content:
        training = {key: item for key, item in content.training.items() if key != "ranks"}
        return gather({"model": dict(content.model), "training": training})


def save(run: Any, folder: Path) -> Path:
    with (
        CheckpointManager(folder, Retention(9), in_background=True) as checkpoints,
        checkpoint_content(run) as content,
    ):
        checkpoints.save(run.state.num_updates, content, is_best=False)
    return folder / f"update_{run.state.num_updates:08d}"


def _rank(rank: int, folder: str) -> None:
    shared = Path(folder)
    dist.init_process_group("gloo", init_method=f"file://{shared}/store", rank=rank, world_size=2)
    world = World(rank, rank, 2, torch.device("cpu"))
    run = make_run(world, is_sharded=True)
    train(run, 3)
    save(run, shared / "two")
    states = {"saved": full_state(run), "saved meters": world.all_gather(run.meters[""].state_dict())}
    train(run, 2)
    states["continued"] = full_state(run)
    save(make_run(world, is_sharded=False), shared / "replicated")
    dist.barrier()
    if rank == 0:
        (shared / "two_has_saved").touch()
    while not (shared / "one_has_saved").exists():
        time.sleep(0.02)
    restored = make_run(world, is_sharded=True)
    restore(restored, SavedCheckpoint(shared / "one" / "update_00000003"))
    restored.state.num_updates = 3
    states["restored"] = full_state(restored)
    states["restored meters"] = world.all_gather(restored.meters[""].state_dict())
    train(restored, 2)
    states["restored and continued"] = full_state(restored)
    if rank == 0:
        torch.save(states, shared / "states.pt")
    dist.destroy_process_group()


def reshard_and_return(folder: Path) -> dict[str, Any]:
    """Save on two ranks, restore and save on one, restore on two; return the state at each of these points."""
    ranks = spawn(_rank, str(folder), num_ranks=2, join=False)
    while not (folder / "two_has_saved").exists():
        if ranks.join(timeout=0.02):
            raise AssertionError("the ranks have ended")
    world = World(0, 0, 1, torch.device("cpu"))
    with world.process_group():
        run = make_run(world, is_sharded=False)
        restore(run, SavedCheckpoint(folder / "two" / "update_00000003"))
        run.state.num_updates = 3
        on_one, meter = full_state(run), run.meters[""].state_dict()
        save(run, folder / "one")
    (folder / "one_has_saved").touch()
    while not ranks.join():
        pass
    return torch.load(folder / "states.pt", weights_only=False) | {"on one": on_one, "meter": meter}


def run_on_ranks(
    num_ranks: int, folder: Path, commands: Sequence[Sequence[str]], failing: Mapping[str, int] | None = None
) -> None:
    """Run `hydrant ...` for each command, one after the other, on the same ranks.

    Every command must succeed on all ranks, except the runs in `failing`, which must end with the given exit status.
    """
    words = [list(command) for command in commands]
    with tempfile.TemporaryDirectory() as store:
        arguments = (num_ranks, str(folder), f"file://{store}/store", words, dict(failing or {}))
        spawn(_commands, *arguments, num_ranks=num_ranks)


def _commands(
    rank: int, num_ranks: int, folder: str, store: str, commands: list[list[str]], failing: dict[str, int]
) -> None:
    os.chdir(folder)
    sys.path.insert(0, folder)
    compose.Composer = SharingComposer
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
    timeout = timedelta(seconds=60)  # a rank that waits for a missing one fails
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=num_ranks, timeout=timeout)
    for words in commands:
        assert cli.main(words) == failing.get(words[1].removeprefix("name="), 0), words
    dist.destroy_process_group()
