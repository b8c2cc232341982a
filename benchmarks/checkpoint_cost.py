"""What a checkpoint costs the run that saves it.

The stall of a save (`save_async=true`), from the call until training goes on, is measured in one process in turn with
a copy of the same tensors into memory that is there already: the least that a save can be which training may go on
after. What it adds to a run is measured in two runs of a small convolutional network (ResNet-10-T of timm, batches
of 16 images of 32 pixels) on one thread, each in a process of its own, which take turns: one saves every 100 updates.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.figures import Figure
from benchmarks.statistics import interval, paired
from benchmarks.turns import race
from hydrant.bare import bare_run, prepare_for
from hydrant.checkpoint import Checkpoints, Retention
from hydrant.config import check, compose
from hydrant.loop import make_update
from hydrant.state import content_of

LARGE = ("data=digits", "model=mlp", "tracker=local", "optimizer.fused=true", "global_batch_size=8")
SMALL = {
    "contender": "hydrant_run",
    "features": False,
    "model": "resnet10t",
    "image_size": 32,
    "batch_size": 16,
}
WORDS = ("tracker=local", "optimizer.fused=true")
SAVE_EVERY = 100
RUN_REMAINDER = (
    "with updates of 50 ms, a save takes 16 ms from training, 12 of them the copy of 65 MB, and then some 30 ms, most "
    "in the next update, in which the thread that writes has the interpreter, for the plans that "
    "torch.distributed.checkpoint makes of 220 tensors. That is 0.009 of 100 updates on two idle cores; where "
    "something else has the second one, writing takes its time from training."
)


def measure(*, quick: bool) -> list[Figure]:
    """The stall of a save beside a copy, and what saving adds to a run."""
    return [*_stall(quick=quick), *_run(quick=quick)]


def _stall(*, quick: bool) -> list[Figure]:
    hidden, num_blocks = ([50, 50], 2) if quick else ([3000, 3000, 3000], 9)
    prepared = prepare_for(check(compose([*LARGE, f"model.hidden={hidden}"])), 1)
    stalls, copies, num_bytes = list[float](), list[float](), 0
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        bare_run(prepared) as run,
        Checkpoints(Path(folder, "checkpoints"), Retention(1), in_background=True) as checkpoints,
    ):
        make_update(run, measure=False)  # now its optimizer has a state
        with content_of(run) as content:
            tensors = list(_tensors([content.model, content.training]))
        there = [tensor.clone() for tensor in tensors]
        num_bytes = sum(tensor.nbytes for tensor in tensors)

        def save() -> None:
            with content_of(run) as content:
                checkpoints.save(len(stalls) + 1, content, is_best=False)

        def copy() -> None:
            for tensor, target in zip(tensors, there, strict=True):
                target.copy_(tensor)

        first = _seconds(save)
        checkpoints.wait()
        for number in range(num_blocks):
            for work, into in ((save, stalls), (copy, copies))[:: 1 if number % 2 == 0 else -1]:
                into.append(_seconds(work))
                checkpoints.wait()
    size = f"{num_bytes / 1e6:,.0f} MB"
    return [
        Figure("the first save of a run", 1e3 * first, "ms", note=f"{size}, into memory that the system gives"),
        Figure("the stall of a later save", interval([1e3 * own for own in stalls]), "ms", note=size),
        Figure("a copy of the same tensors", interval([1e3 * own for own in copies]), "ms", note=size),
        Figure(
            "the stall of a later save, to a copy",
            paired(stalls, copies, lambda own, other: own / other), "x", "<= 1.3",
        ),
    ]  # fmt: skip


def _tensors(value: Any) -> Any:
    """All tensors in a nested state."""
    match value:
        case torch.Tensor():
            yield value
        case dict():
            yield from _tensors(list(value.values()))
        case list() | tuple():
            for item in value:
                yield from _tensors(item)
        case _:
            return


def _seconds(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _run(*, quick: bool) -> list[Figure]:
    num_blocks, block_size, num_warmup = (2, 5, 5) if quick else (7, SAVE_EVERY, SAVE_EVERY // 2)
    racing = {
        "plain": {**SMALL, "words": WORDS},
        "saving": {**SMALL, "words": (*WORDS, f"save_every={SAVE_EVERY}")},
    }
    # The warm-up is half as long as it is from save to save: those lie amid blocks, and end within them.
    seconds, results = race(racing, num_blocks=num_blocks, block_size=block_size, num_warmup=num_warmup)
    is_same = results["plain"]["digest"] == results["saving"]["digest"]
    note = "weights: the same without, bit for bit" if is_same else "weights: others"
    update = interval([1e3 * own / block_size for own in seconds["plain"]])
    added = paired(seconds["saving"], seconds["plain"], lambda own, other: own / other - 1)
    return [
        Figure("an update of the small network", update, "ms"),
        Figure(
            f"added by saving every {SAVE_EVERY} updates", added, "of the run", "<= 0.01", note, RUN_REMAINDER
        ),
    ]
