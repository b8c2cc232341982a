"""A small model, ViT-Ti/16 with batches of 8 images of 224 pixels, where launching kernels is what takes the time.

Hydrant in bf16 with CUDA graphs (`compile=reduce_overhead`), with the update compiled too, beside Hydrant eager. All
but that one have torch's fused update.
"""

from __future__ import annotations

from benchmarks.figures import Figure
from benchmarks.statistics import paired
from benchmarks.turns import race
from benchmarks.vits import ours, size

PLAIN = ("precision=bf16", "tracker=local", "log_every=null")
CONTENDERS = {
    "eager": ours(*PLAIN, "optimizer.fused=true"),
    "compile=default": ours(*PLAIN, "compile=default", "optimizer.fused=true"),
    "compile=reduce_overhead": ours(*PLAIN, "compile=reduce_overhead", "optimizer.fused=true"),
    "compile=reduce_overhead compile.optimizer=true": ours(
        *PLAIN, "compile=reduce_overhead", "compile.optimizer=true"
    ),
}


def measure(*, quick: bool) -> list[Figure]:
    """How many times as fast as eager each of them is."""
    work = size("vit_tiny_patch16_224", 8, quick=quick)
    num_blocks, block_size = (2, 2) if quick else (11, 50)
    racing = {title: {**own, **work} for title, own in CONTENDERS.items()}
    seconds, _ = race(racing, num_blocks=num_blocks, block_size=block_size, num_warmup=10)
    return [
        Figure(
            f"faster than eager: {title}",
            paired(seconds["eager"], seconds[title], lambda eager, own: eager / own),
            "x",
            ">= 4" if "reduce_overhead" in title else None,
        )
        for title in CONTENDERS
        if title != "eager"
    ]
