"""Gradients through an all-reduce on two real ranks, for tests/project/test_torch_facts.py."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable_dist
from spawned import spawn
from torch import Tensor


def _in_place(x: Tensor) -> Tensor:
    y = 2 * x
    dist.all_reduce(y)
    return y.sum()


def _under_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        total = x.sum(0)
        dist.all_reduce(total)
    return (2 * x + total).sum()


def _differentiable(x: Tensor) -> Tensor:
    return differentiable_dist.all_reduce(2 * x).sum()


def _gradient(function: Callable[[Tensor], Tensor]) -> float | str:
    x = torch.ones(3, requires_grad=True)
    try:
        function(x).backward()
    except torch._dynamo.exc.Unsupported:
        return "refused"
    return 0.0 if x.grad is None else float(x.grad[0])


def _rank(rank: int, folder: str) -> None:
    import torch._dynamo  # slow, so before the ranks wait for each other

    warnings.simplefilter("ignore")  # about gradients of in-place collectives, and the old functions
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    gradients: dict[str, dict[str, Any]] = {}
    for function in (_in_place, _under_no_grad, _differentiable):
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
        gradients[function.__name__[1:]] = {"eager": _gradient(function), "compiled": _gradient(compiled)}
    if rank == 0:
        (Path(folder) / "gradients.json").write_text(json.dumps(gradients))
    dist.destroy_process_group()


def gradients_of_collectives(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the gradient of each entry of x, or "refused", by function and then by eager or compiled."""
    spawn(_rank, str(folder), num_ranks=2)
    return json.loads((folder / "gradients.json").read_text())
