"""The parts of an update on several ranks, measured separately: computing, and all_reduce by gloo."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from benchmarks.contenders import ranks
from hydrant.training.distributed.world import World


def measure() -> dict[str, Any]:
    """Return the seconds of each part in each update."""
    parts: dict[str, Callable[[], object]] = {"compute": computing()}
    for size in ranks.SETTINGS["sizes"]:
        parts[str(size)] = summing(size)
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    with World.from_launcher().process_group():
        for _ in ranks.updates():
            for name, part in parts.items():
                dist.barrier()
                start = time.perf_counter()
                part()
                seconds[name].append(time.perf_counter() - start)
    return {"seconds": seconds}


def computing() -> Callable[[], object]:
    """Return a hand-written update without communication."""
    model, (inputs, targets) = ranks.model(), ranks.batch()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def update() -> None:
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return update


def summing(num_bytes: int) -> Callable[[], object]:
    """Return an all_reduce of `num_bytes` over all ranks."""
    tensor = torch.zeros(num_bytes // 4)
    return lambda: dist.all_reduce(tensor)


ranks.run_on_all_ranks(measure)
