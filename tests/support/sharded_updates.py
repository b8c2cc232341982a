"""Updates of sharded weights on four real ranks, for tests/training/distributed/test_sharded_updates.py."""

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from operations import Names
from spawned import spawn
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_leaves

from hydrant.clock import Clock, Steps
from hydrant.optimizers.ema import Ema
from hydrant.optimizers.kernels import Clipping, OptimizerStep, with_fastest_kernel
from hydrant.optimizers.scheduled_fields import FieldSchedules
from hydrant.training.precision import Precision
from hydrant.training.update import OptimizerEntry, Optimizers

NUM_RANKS, FEW, MANY = 4, 2, 6
MESHES = {"fsdp": (4,), "hsdp": (2, 2)}


def has_shards(arguments: Any) -> bool:
    return any(isinstance(leaf, DTensor) for leaf in tree_leaves(arguments))


class Case:
    """A model with an optimizer, clipping and an average; sharded if there is a mesh."""

    def __init__(self, settings: Mapping[str, Any], num_layers: int, mesh: DeviceMesh | None) -> None:
        self.generator, self.mesh = torch.Generator().manual_seed(0), mesh
        self.model = nn.Sequential(*(nn.Linear(7, 7) for _ in range(num_layers)), nn.BatchNorm1d(7))
        for parameter in self.model.parameters():
            parameter.data = torch.randn(parameter.shape, generator=self.generator)
        clock = Clock.start(10, num_samples=8, batch_sizes=Steps.constant(8))
        self.ema = Ema(clock, decay=0.5, min_decay=0.0, start_after=0, warmup=False, warmup_gamma=1.0,
                       warmup_power=1.0, exclude_buffers=False)  # fmt: skip
        self.ema.start(self.model)
        if mesh is not None:
            fully_shard(self.model, mesh=mesh)
            self.ema.shard(partial(fully_shard, mesh=mesh))
        self.parameters = list(self.model.parameters())
        optimizer = with_fastest_kernel(partial(settings["optimizer"], lr=0.1))([{"params": self.parameters}])
        entry = OptimizerEntry(optimizer, OptimizerStep(optimizer), Clipping(**settings.get("clipping", {})))
        precision = Precision(
            torch.device("cpu"), autocast=None, scale_loss=settings.get("scale_loss", False), matmul="highest",
            parameters="float32", fp8=None, emulate=False, init_scale=4.0, growth_factor=2.0, backoff_factor=0.5,
            growth_interval=9,
        )  # fmt: skip
        precision.scaler.scale(torch.ones(()))  # creates the scale
        self.optimizers = Optimizers({"main": entry}, FieldSchedules({"main": optimizer}, {}), precision)

    def gradients(self) -> list[Tensor]:
        whole = [torch.randn(p.shape, generator=self.generator) for p in self.parameters]
        if self.mesh is None:
            return whole
        placements = [p.placements for p in self.parameters if isinstance(p, DTensor)]
        return [distribute_tensor(g, self.mesh, to) for g, to in zip(whole, placements, strict=True)]

    def update(self, num_updates: int, gradients: list[Tensor]) -> Tensor:
        """Make an update and return the norm of its gradients."""
        turn = self.optimizers.whole

        def accumulate() -> Any:
            for parameter, gradient in zip(self.parameters, gradients, strict=True):
                parameter.grad = gradient
            turn.scale_gradients(0.5)
            return [], None

        made = self.optimizers.update(turn, num_updates, accumulate, lambda values: values, measure=True)
        self.ema.update(num_updates + 1)
        return made.grad_norms["grad_norm"]

    def result(self, norm: Tensor) -> dict[str, Tensor]:
        states = {"model": self.model.state_dict(), "ema": self.ema.state_dict()}
        named = {f"{part}.{n}": value for part, state in states.items() for n, value in state.items()}
        whole = {n: v.full_tensor() if isinstance(v, DTensor) else v for n, v in named.items()}
        return {**whole, "norm": norm}


def three_updates(settings: Mapping[str, Any], num_layers: int, mesh: DeviceMesh | None) -> Any:
    """Return the operations on sharded tensors in the last of three updates, and what is there after it."""
    case = Case(settings, num_layers, mesh)
    for num_updates in range(2):
        case.update(num_updates, case.gradients())
    gradients = case.gradients()
    with Names(has_shards) as names:
        norm = case.update(2, gradients)
    return names.found, case.result(norm)


def _rank(rank: int, folder: str, cases: Mapping[str, Mapping[str, Any]]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=NUM_RANKS)
    found: dict[tuple[str, str], Any] = {}
    for kind, shape in MESHES.items():
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        for name, settings in cases.items():
            few, _ = three_updates(settings, FEW, mesh)
            many, result = three_updates(settings, MANY, mesh)
            found[kind, name] = {"few": few, "many": many, "result": result}
    if rank == 0:
        torch.save(found, Path(folder) / "found.pt")
    dist.destroy_process_group()


def sharded_updates(cases: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str], Any]:
    """Return, by kind of mesh and case: operations with few and many layers, and the result with many."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_rank, folder, cases, num_ranks=NUM_RANKS)
        return torch.load(Path(folder) / "found.pt", weights_only=False)
