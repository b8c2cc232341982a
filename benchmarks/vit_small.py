"""A small model, ViT-Ti/16 with batches of 8 images of 224 pixels, where launching kernels takes most of the time.

Hydrant in bf16 with CUDA graphs (`compile=reduce_overhead`), once also with a compiled optimizer step, is compared with
eager Hydrant. All others use torch's fused optimizer step. Without CUDA, Inductor stands in for CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.figures import Figure, Item
from benchmarks.statistics import paired
from benchmarks.turns import hydrant, profile, race
from benchmarks.vits import size

PLAIN = ("precision=bf16", "tracker=local", "log_every=null")
GRAPHS = ("compile=reduce_overhead",) if torch.cuda.is_available() else ("compile=default",)
BEST = "compile=reduce_overhead"
CONTENDERS = {
    "eager": hydrant(*PLAIN, "optimizer.fused=true"),
    "compile=default": hydrant(*PLAIN, "compile=default", "optimizer.fused=true"),
    BEST: hydrant(*PLAIN, *GRAPHS, "optimizer.fused=true"),
    f"{BEST} compile.optimizer=true": hydrant(*PLAIN, *GRAPHS, "compile.optimizer=true"),
}
GOALS = {f"faster than eager: {title}": ">= 4" for title in CONTENDERS if BEST in title}


def measure(*, quick: bool) -> Iterator[Item]:
    """Measure how many times faster than eager each setting is."""
    work = size("vit_tiny_patch16_224", 8, quick=quick)
    num_blocks, block_size = (2, 2) if quick else (11, 50)
    racing = {title: {**settings, **work} for title, settings in CONTENDERS.items()}
    seconds, _ = race(racing, num_blocks=num_blocks, block_size=block_size, num_warmup=10)
    for title in CONTENDERS:
        if title == "eager":
            continue
        ratio = paired(seconds["eager"], seconds[title], lambda eager, compiled: eager / compiled)
        what = f"faster than eager: {title}"
        figure = Figure(what, ratio, "x", GOALS.get(what))
        yield figure
        if figure.is_met is False:
            yield profile(title, racing[title])
