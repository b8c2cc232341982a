"""AdamW's compiled and fused steps for ViT-B/16 and ViT-L/16, compared with memory bandwidth and with foreach.

A step reads weights, gradients and two moments, and writes all of them except the gradients: 28 bytes per weight. The
floor is the time of these bytes at the rate of a large copy, which takes turns with the steps. The learning rate
changes in every step.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from statistics import median

import timm
import torch
from torch import nn

from benchmarks.figures import Figure, Item, Profile
from benchmarks.report import Cell
from benchmarks.statistics import paired
from benchmarks.turns import in_turn, short
from hydrant.extensions.compile.compiled_step import compile_step
from hydrant.optimizers.scheduled_fields import ScheduledField
from hydrant.training.costs import synchronize

BYTES = 28
STEPS = ("compiled", "fused", "foreach")


MODELS = ("vit_base_patch16_224", "vit_large_patch16_224")
GOALS = {f"{name}: compiled or fused update, as a multiple of its lower limit": "<= 1.25" for name in MODELS}


def cells(*, quick: bool) -> dict[str, Cell]:
    """Return a cell for each model."""
    return {name: partial(measure_model, name, quick=quick) for name in MODELS[: 1 if quick else None]}


def measure_model(name: str, *, quick: bool) -> Iterator[Item]:
    """Measure the steps of a model against their floor and against foreach."""
    num_blocks, block_size = (2, 1) if quick else (11, 20)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = timm.create_model(name, **({"depth": 1} if quick else {})).to(device)
    copies = {step: [nn.Parameter(p.detach().clone()) for p in model.parameters()] for step in STEPS}
    functions = updates(copies)

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
    for step in ("compiled", "fused"):
        ratio = paired(seconds["foreach"], seconds[step], lambda foreach, other: foreach / other)
        difference = (
            f"weights differ by at most {distance(copies[step], copies['foreach']):.1g} of their norm"
        )
        yield Figure(f"{name}: {step} faster than foreach", ratio, "x", None, difference)
    best = min("compiled", "fused", key=lambda step: median(seconds[step]))
    of_floor = paired(seconds[best], floor, lambda step, least: step / least)
    what = f"{name}: compiled or fused update, as a multiple of its lower limit"
    figure = Figure(what, of_floor, "x", GOALS[what], f"{best} is faster")
    yield figure
    if quick or figure.is_met is False:
        yield Profile(name, kernels(functions))


def updates(copies: Mapping[str, list[nn.Parameter]]) -> dict[str, Callable[[], object]]:
    """Return a function for each of STEPS, and one that copies as many numbers as there are weights."""
    for parameters in zip(*copies.values(), strict=True):
        gradient = torch.randn_like(parameters[0]) / 1000
        for parameter in parameters:
            parameter.grad = gradient.clone()
    whole = torch.cat([parameter.detach().flatten() for parameter in copies["foreach"]])
    target, count = torch.empty_like(whole), itertools.count(1)
    optimizer = torch.optim.AdamW(copies["compiled"])
    update = compile_step(optimizer, ["lr"], {"fullgraph": True})
    lr = ScheduledField(optimizer, 0, "lr", lambda num_updates: 1e-3 / num_updates)

    def compiled() -> None:
        lr.write(next(count))
        update()

    def plain(**settings: bool) -> Callable[[], object]:
        (step,) = settings
        optimizer, count = torch.optim.AdamW(copies[step], **settings), itertools.count(1)

        def function() -> None:
            optimizer.param_groups[0]["lr"] = 1e-3 / next(count)
            optimizer.step()

        return function

    copy = partial(target.copy_, whole)
    return {"copy": copy, "compiled": compiled, "fused": plain(fused=True), "foreach": plain(foreach=True)}


def distance(one: Iterable[nn.Parameter], other: Iterable[nn.Parameter]) -> float:
    """Return the largest distance of two tensors, relative to the norm of the second."""
    pairs = zip(one, other, strict=True)
    return max(((a - b).norm() / b.norm().clamp(min=1e-12)).item() for a, b in pairs)


def kernels(functions: Mapping[str, Callable[[], object]]) -> str:
    """Return the kernels of the compiled and of the fused step."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else Kineto prints each start and stop to stderr
    tables = list[str]()
    for step in ("compiled", "fused"):
        with torch.profiler.profile(acc_events=True) as profiled:
            functions[step]()
        table = profiled.key_averages().table("self_cuda_time_total", row_limit=20)
        tables.append(f"{step}\n{short(table)}")
    return "\n\n".join(tables)
