"""AdamW's compiled step for ViT-B/16 and ViT-L/16, compared with memory bandwidth and with foreach.

A step reads weights, gradients and two moments, and writes all of them except the gradients: 28 bytes per weight. The
floor is the time of these bytes at the rate of a large copy, which takes turns with the steps. The learning rate
changes in every step.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial

import timm
import torch
from torch import nn

from benchmarks.figures import Figure
from benchmarks.statistics import paired
from benchmarks.turns import in_turn
from hydrant.training.compile.compiled_step import compile_step
from hydrant.training.profiling import synchronize

BYTES = 28


def measure(*, quick: bool) -> list[Figure]:
    """Measure each model's step against its floor and against foreach."""
    num_blocks, block_size, depth = (2, 1, 1) if quick else (11, 20, None)
    figures = list[Figure]()
    for name in ("vit_base_patch16_224", "vit_large_patch16_224"):
        figures += measure_model(name, num_blocks=num_blocks, block_size=block_size, depth=depth)
    return figures


def measure_model(name: str, *, num_blocks: int, block_size: int, depth: int | None) -> list[Figure]:
    """Measure one model. `depth` overrides its number of blocks."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = timm.create_model(name, **({} if depth is None else {"depth": depth})).to(device)
    twins = [nn.Parameter(p.detach().clone()) for p in model.parameters()]
    functions = updates(model, twins)

    def block(function: Callable[[], object]) -> float:
        synchronize(device)
        start = time.perf_counter()
        for _ in range(block_size):
            function()
        synchronize(device)
        return (time.perf_counter() - start) / block_size

    for _ in range(5):  # the first calls compile
        for function in functions.values():
            function()
    seconds = in_turn({title: partial(block, function) for title, function in functions.items()}, num_blocks)
    floor = [copy * BYTES / 8 for copy in seconds["copy"]]  # a copy moves 8 bytes per number
    of_floor = paired(seconds["compiled"], floor, lambda compiled, least: compiled / least)
    faster = paired(seconds["foreach"], seconds["compiled"], lambda foreach, compiled: foreach / compiled)
    difference = max(
        ((p - twin).norm() / twin.norm().clamp(min=1e-12)).item()
        for p, twin in zip(model.parameters(), twins, strict=True)
    )
    note = f"weights differ by at most {difference:.1g} of their norm"
    return [
        Figure(f"{name}: compiled update, of its floor", of_floor, "x", "<= 1.25"),
        Figure(f"{name}: faster than foreach", faster, "x", ">= 1.5", note),
    ]


def updates(model: nn.Module, twins: list[nn.Parameter]) -> dict[str, Callable[[], object]]:
    """Return three functions: copy as many numbers as there are weights, compiled step, foreach step of the twins."""
    for parameter, twin in zip(model.parameters(), twins, strict=True):
        parameter.grad = twin.grad = torch.randn_like(parameter) / 1000
    whole = torch.cat([twin.detach().flatten() for twin in twins])
    target, count = torch.empty_like(whole), itertools.count(1)
    optimizer = torch.optim.AdamW(model.parameters())
    update = compile_step(optimizer, ["lr"], {"fullgraph": True})

    def compiled() -> None:
        optimizer.param_groups[0]["lr"].fill_(1e-3 / next(count))
        update()

    foreach_optimizer, foreach_count = torch.optim.AdamW(twins, foreach=True), itertools.count(1)

    def foreach() -> None:
        foreach_optimizer.param_groups[0]["lr"] = 1e-3 / next(foreach_count)
        foreach_optimizer.step()

    return {"copy": lambda: target.copy_(whole), "compiled": compiled, "foreach": foreach}
