"""The cost of saving checkpoints.

The stall of a save (`save_async=true`) is the time from the call until training continues. It takes turns, in one
process, with a copy of the same tensors into allocated memory, which is the lower limit of such a stall. The cost to a
run is measured with two runs of a small convolutional network (ResNet-10-T of timm, batches of 16 images of 32
pixels) on one thread, in separate processes that take turns. One of them saves every 100 updates.
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
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.training.checkpoint.folder import Retention
from hydrant.training.checkpoint.manager import CheckpointManager
from hydrant.training.loop import make_update
from hydrant.training.scratch import prepare_at_least, scratch_trainer
from hydrant.training.train_state import checkpoint_content

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
    "With updates of 50 ms, a save stalls training for 16 ms, of which 12 ms copy 65 MB. It costs about 30 ms more, "
    "mostly in the next update, while the writing thread holds the GIL to plan 220 tensors in "
    "torch.distributed.checkpoint. That is 0.009 of 100 updates on two idle cores. If the second core is busy, "
    "writing also competes with training."
)


def measure(*, quick: bool) -> list[Figure]:
    """Measure the stall of a save against a copy, and what saving adds to a run."""
    return [*_stall(quick=quick), *_run(quick=quick)]


def _stall(*, quick: bool) -> list[Figure]:
    hidden, num_blocks = ([50, 50], 2) if quick else ([3000, 3000, 3000], 9)
    prepared = prepare_at_least(check(compose([*LARGE, f"model.hidden={hidden}"])), 1)
    stalls, copies, num_bytes = list[float](), list[float](), 0
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        scratch_trainer(prepared) as trainer,
        CheckpointManager(Path(folder, "checkpoints"), Retention(1), in_background=True) as checkpoints,
    ):
        make_update(trainer, measure=False)  # creates the optimizer's state
        with checkpoint_content(trainer) as content:
            tensors = list(_tensors([content.model, content.training]))
        copies_of_tensors = [tensor.clone() for tensor in tensors]
        num_bytes = sum(tensor.nbytes for tensor in tensors)

        def save() -> None:
            with checkpoint_content(trainer) as content:
                checkpoints.save(len(stalls) + 1, content, is_best=False)

        def copy() -> None:
            for tensor, target in zip(tensors, copies_of_tensors, strict=True):
                target.copy_(tensor)

        first = _seconds(save)
        checkpoints.wait()
        for number in range(num_blocks):
            for function, seconds in ((save, stalls), (copy, copies))[:: 1 if number % 2 == 0 else -1]:
                seconds.append(_seconds(function))
                checkpoints.wait()
    size = f"{num_bytes / 1e6:,.0f} MB"
    return [
        Figure("the first save of a run", 1e3 * first, "ms", note=f"{size}, into newly allocated memory"),
        Figure("the stall of a later save", interval([1e3 * seconds for seconds in stalls]), "ms", note=size),
        Figure("a copy of the same tensors", interval([1e3 * seconds for seconds in copies]), "ms", note=size),
        Figure(
            "the stall of a later save, to a copy",
            paired(stalls, copies, lambda stall, copy: stall / copy), "x", "<= 1.3",
        ),
    ]  # fmt: skip


def _tensors(value: Any) -> Any:
    """Yield all tensors in a nested state."""
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


def _seconds(function: Any) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def _run(*, quick: bool) -> list[Figure]:
    num_blocks, block_size, num_warmup = (2, 5, 5) if quick else (7, SAVE_EVERY, SAVE_EVERY // 2)
    racing = {
        "plain": {**SMALL, "words": WORDS},
        "saving": {**SMALL, "words": (*WORDS, f"save_every={SAVE_EVERY}")},
    }
    # The warm-up is half as long as the interval between saves, so saves start and end within blocks.
    seconds, results = race(racing, num_blocks=num_blocks, block_size=block_size, num_warmup=num_warmup)
    is_same = results["plain"]["digest"] == results["saving"]["digest"]
    note = "weights: equal without saving, bit for bit" if is_same else "weights: different"
    update = interval([1e3 * block / block_size for block in seconds["plain"]])
    added = paired(seconds["saving"], seconds["plain"], lambda saving, plain: saving / plain - 1)
    return [
        Figure("an update of the small network", update, "ms"),
        Figure(
            f"added by saving every {SAVE_EVERY} updates", added, "of the run", "<= 0.01", note, RUN_REMAINDER
        ),
    ]
