"""What an update on several ranks consists of, each part by itself: computing without an exchange, and sums by gloo."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from benchmarks.contenders import ranks
from hydrant.distributed import World


def measure() -> dict[str, Any]:
    """The seconds of each part, of each time."""
    parts: dict[str, Callable[[], object]] = {"compute": computing()}
    for size in ranks.SETTINGS["sizes"]:
        parts[str(size)] = summing(size)
    seconds: dict[str, list[float]] = {name: [] for name in parts}
    with World.from_launcher().group():
        for _ in ranks.updates():
            for name, part in parts.items():
                dist.barrier()
                began = time.perf_counter()
                part()
                seconds[name].append(time.perf_counter() - began)
    return {"seconds": seconds}


def computing() -> Callable[[], object]:
    """An update by hand, on this rank alone."""
    model, (inputs, targets) = ranks.model(), ranks.batch()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def update() -> None:
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()

    return update


def summing(num_bytes: int) -> Callable[[], object]:
    """A tensor of this size over all ranks."""
    tensor = torch.zeros(num_bytes // 4)
    return lambda: dist.all_reduce(tensor)


ranks.on_all(measure)
