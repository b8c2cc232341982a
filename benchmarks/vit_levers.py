"""What could make a ViT-B/16 faster on one GPU, one change at a time: for where the goals of `vit_flops` are missed.

Each lever takes turns with Hydrant as in `vit_speed`. Another number format or batch size is another training, so this
shows what a user gains who may choose it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.figures import Figure
from benchmarks.report import Cell
from benchmarks.statistics import paired
from benchmarks.turns import hydrant, race
from benchmarks.vits import FAST, size

BATCH_SIZE = 256
LEVERS: dict[str, tuple[int, tuple[str, ...]]] = {
    "batches of 512": (2 * BATCH_SIZE, ()),
    "precision=bf16_true": (BATCH_SIZE, ("precision=bf16_true",)),
    "precision=fp8": (BATCH_SIZE, ("precision=fp8",)),
    "compile=max_autotune_no_cudagraphs": (BATCH_SIZE, ("compile=max_autotune_no_cudagraphs",)),
}
"""Batch sizes and overrides. The last one compiles longest: on an H200 it had no figure after four minutes."""


def cells(*, quick: bool) -> dict[str, Cell]:
    """Return a cell for each lever."""
    return {
        title: partial(measure_lever, title, quick=quick)
        for title in (["precision=fp8"] if quick else LEVERS)
    }


def measure_lever(title: str, *, quick: bool) -> Iterator[Figure]:
    """Measure how many times more images a second there are with the lever."""
    batch_size, words = LEVERS[title]
    emulate = ("precision.emulate=true",) if quick and "precision=fp8" in words else ()
    plain, pulled = (size("vit_base_patch16_224", number, quick=quick) for number in (BATCH_SIZE, batch_size))
    num_blocks, block_size = (2, 2) if quick else (5, 10)
    replaced = dict(word.split("=", 1) for word in (*FAST, *words, *emulate))
    other = hydrant(*(f"{key}={value}" for key, value in replaced.items()), **pulled)
    contenders = {"plain": hydrant(*FAST, **plain), title: other}
    seconds, _ = race(contenders, num_blocks=num_blocks, block_size=block_size, num_warmup=5)
    gain = pulled["batch_size"] / plain["batch_size"]
    ratio = paired(seconds["plain"], seconds[title], lambda plain, other: gain * plain / other)
    yield Figure(f"images a second: {title}", ratio, "x")
