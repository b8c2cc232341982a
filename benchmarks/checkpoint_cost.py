"""The cost of saving checkpoints.

The stall of a save (`save_async=true`) is the time from the call until training continues. It takes turns, in one
process, with a copy of the same tensors into allocated memory, which is the lower limit of such a stall. The cost to a
run is measured with two runs of a small convolutional network (ResNet-10-T of timm, batches of 16 images of 32
pixels) on one thread, in separate processes that take turns. One of them saves every 100 updates.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks.figures import Figure
from benchmarks.statistics import interval, paired
from benchmarks.turns import hydrant, in_turn, race
from hydrant.config.check import check
from hydrant.config.compose import compose
from hydrant.training.checkpoint.folder import Retention
from hydrant.training.checkpoint.manager import CheckpointManager
from hydrant.training.checkpoint.storage import split
from hydrant.training.loop import make_update
from hydrant.training.prepare.micro_batch import prepare_at_least, scratch_trainer
from hydrant.training.saved_run import checkpoint_content

LARGE = ("data=digits", "model=mlp", "tracker=local", "optimizer.fused=true", "global_batch_size=8")
SMALL = {"model": "resnet10t", "image_size": 32, "batch_size": 16}
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
    torch.set_num_threads(1)
    with (
        tempfile.TemporaryDirectory() as folder,
        scratch_trainer(prepared) as trainer,
        CheckpointManager(Path(folder, "checkpoints"), Retention(1), in_background=True) as checkpoints,
    ):
        make_update(trainer, measure=False)  # creates the optimizer's state
        with checkpoint_content(trainer) as content:
            split([content.model, content.training], tensors := dict[str, torch.Tensor]())
        targets, numbers = [tensor.clone() for tensor in tensors.values()], itertools.count(1)
        size = f"{sum(tensor.nbytes for tensor in targets) / 1e6:,.0f} MB"

        def save() -> None:
            with checkpoint_content(trainer) as content:
                checkpoints.save(next(numbers), content, is_best=False)

        def copy() -> None:
            for tensor, target in zip(tensors.values(), targets, strict=True):
                target.copy_(tensor)

        def seconds(function: Callable[[], None]) -> float:
            start = time.perf_counter()
            function()
            duration = time.perf_counter() - start
            checkpoints.wait()
            return duration

        first = seconds(save)
        stalls, copies = in_turn(
            {"save": partial(seconds, save), "copy": partial(seconds, copy)}, num_blocks
        ).values()
    to_copy = paired(stalls, copies, lambda stall, copy: stall / copy)
    return [
        Figure("the first save of a run", 1e3 * first, "ms", note=f"{size}, into newly allocated memory"),
        Figure("the stall of a later save", interval([1e3 * stall for stall in stalls]), "ms", note=size),
        Figure("a copy of the same tensors", interval([1e3 * copy for copy in copies]), "ms", note=size),
        Figure("the stall of a later save, to a copy", to_copy, "x", "<= 1.3"),
    ]


def _run(*, quick: bool) -> list[Figure]:
    num_blocks, block_size, num_warmup = (2, 5, 5) if quick else (7, SAVE_EVERY, SAVE_EVERY // 2)
    racing = {
        "plain": hydrant(*WORDS, **SMALL),
        "saving": hydrant(*WORDS, f"save_every={SAVE_EVERY}", **SMALL),
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
