"""AdamW's compiled update of ViT-B/16 and ViT-L/16 beside the memory that it has to move, and beside foreach.

An update reads weights, gradients and two moments and writes all but the gradients: 28 bytes a weight. The floor is
these bytes at the rate of a large copy, timed in turn with the updates. The learning rate changes in every update.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import timm
import torch
from torch import nn

from benchmarks.figures import Figure
from benchmarks.statistics import paired
from hydrant.compilation.update import compiled_update
from hydrant.profiling import synchronise

BYTES = 28


def measure(*, quick: bool) -> list[Figure]:
    """Per model, the update against its floor and against foreach."""
    figures = list[Figure]()
    for name in ("vit_base_patch16_224", "vit_large_patch16_224"):
        figures += of(
            name, num_blocks=2 if quick else 11, block_size=1 if quick else 20, depth=1 if quick else None
        )
    return figures


def of(name: str, *, num_blocks: int, block_size: int, depth: int | None) -> list[Figure]:
    """One model; a `depth` of its own makes it small."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = timm.create_model(name, **({} if depth is None else {"depth": depth})).to(device)
    twins = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
    sides = updates(model, twins)
    for _ in range(5):  # it compiles in the first ones
        for side in sides.values():
            side()
    seconds = {title: list[float]() for title in sides}
    for number in range(num_blocks):
        for title in list(sides) if number % 2 == 0 else reversed(list(sides)):
            synchronise(device)
            began = time.perf_counter()
            for _ in range(block_size):
                sides[title]()
            synchronise(device)
            seconds[title].append((time.perf_counter() - began) / block_size)
    floor = [own * BYTES / 8 for own in seconds["copy"]]  # a copy moves 8 bytes a number
    of_floor = paired(seconds["compiled"], floor, lambda ours, least: ours / least)
    faster = paired(seconds["foreach"], seconds["compiled"], lambda theirs, ours: theirs / ours)
    apart = max(
        ((p - twin).norm() / twin.norm().clamp(min=1e-12)).item()
        for p, twin in zip(model.parameters(), twins, strict=True)
    )
    note = f"weights at most {apart:.1g} of their norm apart"
    return [
        Figure(f"{name}: compiled update, of its floor", of_floor, "x", "<= 1.25"),
        Figure(f"{name}: faster than foreach", faster, "x", ">= 1.5", note),
    ]


def updates(model: nn.Module, twins: list[nn.Parameter]) -> dict[str, Callable[[], object]]:
    """A copy of as many numbers as the model has weights, its compiled update, and its twins' by foreach."""
    for parameter, twin in zip(model.parameters(), twins, strict=True):
        parameter.grad = twin.grad = torch.randn_like(parameter) / 1000
    whole = torch.cat([twin.detach().flatten() for twin in twins])
    target, count = torch.empty_like(whole), itertools.count()
    optimizer = torch.optim.AdamW(model.parameters())
    update = compiled_update(optimizer, ["lr"], {"fullgraph": True})

    def compiled() -> None:
        number = next(count)
        optimizer.param_groups[0]["lr"].fill_(1e-3 / (number + 1))
        update(number)

    foreach, turns = torch.optim.AdamW(twins, foreach=True), itertools.count()

    def by_foreach() -> None:
        foreach.param_groups[0]["lr"] = 1e-3 / (next(turns) + 1)
        foreach.step()

    return {"copy": lambda: target.copy_(whole), "compiled": compiled, "foreach": by_foreach}
