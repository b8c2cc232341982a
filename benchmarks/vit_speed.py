"""A ViT-B/16 on one GPU, compared with other precisions, hand-written loops and timm's training script.

Batches of 256 random images of 224 pixels that stay on the GPU, AdamW. Hydrant uses bf16 autocast, compiles the model
with its loss, and uses the fused optimizer step. The eager loops are hand-written with torch's default (foreach) step;
the compiled loop in bf16 uses the fused step, like Hydrant. timm is the loop of its training script with
`--amp --torchcompile`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from benchmarks.figures import Figure, Item
from benchmarks.report import Cell
from benchmarks.statistics import interval, paired
from benchmarks.turns import hydrant, profile, race
from benchmarks.vits import FAST, size

HAND = {"contender": "vit_by_hand", "compile": False, "fused": False}
ROUNDS = {  # all contenders together would not fit into the memory of one GPU
    "compiled": {
        "the loop by hand, compiled": HAND | {"precision": "bf16", "compile": True, "fused": True},
        "timm's script, compiled": {"contender": "vit_timm"},
    },
    "eager": {
        "eager fp32": HAND | {"precision": "fp32"},
        "eager TF32": HAND | {"precision": "tf32"},
        "eager bf16": HAND | {"precision": "bf16"},
    },
}
GOALS = {
    "faster than eager fp32": ">= 6", "faster than eager TF32": ">= 2.5", "faster than eager bf16": ">= 1.2",
    "faster than the loop by hand, compiled": ">= 0.995", "faster than timm's script, compiled": ">= 1",
}  # fmt: skip


def cells(*, quick: bool) -> dict[str, Cell]:
    """Return a cell for each round."""
    return {title: partial(measure_round, contenders, quick=quick) for title, contenders in ROUNDS.items()}


def measure_round(contenders: Mapping[str, dict[str, Any]], *, quick: bool) -> Iterator[Item]:
    """Measure how many times faster Hydrant is than each contender; if not as much as it should be, profile it."""
    work = size("vit_base_patch16_224", 256, quick=quick)
    num_blocks, block_size = (2, 2) if quick else (7, 10)
    racing = {"Hydrant": hydrant(*FAST), **contenders}
    seconds, results = race(
        {title: {**settings, **work} for title, settings in racing.items()},
        num_blocks=num_blocks, block_size=block_size, num_warmup=5,
    )  # fmt: skip
    rate = interval([block_size * work["batch_size"] / block for block in seconds["Hydrant"]])
    yield Figure("Hydrant", rate, "images/s")
    figures = list[Figure]()
    for title in contenders:
        ratio = paired(seconds[title], seconds["Hydrant"], lambda peer, hydrant: peer / hydrant)
        is_same = results[title]["digest"] == results["Hydrant"]["digest"]
        note = "equal, bit for bit" if is_same else "different, because the arithmetic differs"
        what = f"faster than {title}"
        figures.append(Figure(what, ratio, "x", GOALS[what], f"weights: {note}"))
        yield figures[-1]
    if quick or any(figure.is_met is False for figure in figures):
        yield profile("Hydrant", hydrant(*FAST, **work))
