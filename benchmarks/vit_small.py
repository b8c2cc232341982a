"""A small model, ViT-Ti/16 with batches of 8 images of 224 pixels, where launching kernels takes most of the time.

Hydrant in bf16 with CUDA graphs (`compile=reduce_overhead`), once also with a compiled optimizer step, is compared with
eager Hydrant. All others use torch's fused optimizer step.
"""

from __future__ import annotations

from benchmarks.figures import Figure
from benchmarks.statistics import paired
from benchmarks.turns import hydrant, race
from benchmarks.vits import size

PLAIN = ("precision=bf16", "tracker=local", "log_every=null")
CONTENDERS = {
    "eager": hydrant(*PLAIN, "optimizer.fused=true"),
    "compile=default": hydrant(*PLAIN, "compile=default", "optimizer.fused=true"),
    "compile=reduce_overhead": hydrant(*PLAIN, "compile=reduce_overhead", "optimizer.fused=true"),
    "compile=reduce_overhead compile.optimizer=true": hydrant(
        *PLAIN, "compile=reduce_overhead", "compile.optimizer=true"
    ),
}


def measure(*, quick: bool) -> list[Figure]:
    """Measure how many times faster than eager each setting is."""
    work = size("vit_tiny_patch16_224", 8, quick=quick)
    num_blocks, block_size = (2, 2) if quick else (11, 50)
    racing = {title: {**settings, **work} for title, settings in CONTENDERS.items()}
    seconds, _ = race(racing, num_blocks=num_blocks, block_size=block_size, num_warmup=10)
    return [
        Figure(
            f"faster than eager: {title}",
            paired(seconds["eager"], seconds[title], lambda eager, compiled: eager / compiled),
            "x",
            ">= 4" if "reduce_overhead" in title else None,
        )
        for title in CONTENDERS
        if title != "eager"
    ]
