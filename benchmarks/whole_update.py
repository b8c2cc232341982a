"""A whole update on the digits, compared with a plain loop and a DataLoader.

The network of `python train.py` (64-256-256-10, dropout 0.1) with batches of 64, on one thread. Hydrant is a whole run:
batches are made on the device, means of loss and accuracy are logged every 50 updates. The plain loop has none of this;
its DataLoader shuffles in its own process, and its AdamW is torch's default.
"""

from __future__ import annotations

from typing import Any

from benchmarks.figures import Figure
from benchmarks.statistics import interval, paired
from benchmarks.turns import race

PLAIN, LIMIT = "the plain loop", "the limit: resident batches and fused AdamW, nothing else"
CONTENDERS: dict[str, dict[str, Any]] = {
    PLAIN: {"contender": "digits_plain", "is_limit": False},
    LIMIT: {"contender": "digits_plain", "is_limit": True},
    "a fused update": {"contender": "digits_run", "words": ("optimizer.fused=true",)},
    "a compiled update": {"contender": "digits_run", "words": ("compile=default", "compile.optimizer=true")},
}
REMAINDERS = {
    "a fused update": "More than half of the update is matrix products and dropout's random numbers, which the plain "
    "loop needs too. The limit shows what is left to gain.",
    "a compiled update": "Matrix products and dropout's random numbers, from eager kernels, take a third of the "
    "update, as in eager code. In a profile, another third is the graphs' generated code and a tenth their guards, "
    "more than fusion saves in such a small network.",
}


def measure(*, quick: bool) -> list[Figure]:
    """Measure how much faster a run is than the plain loop."""
    num_blocks, block_size = (2, 5) if quick else (18, 66)
    seconds, results = race(
        CONTENDERS, num_blocks=num_blocks, block_size=block_size, num_warmup=5 * block_size
    )
    scale, figures = 1e6 / block_size, list[Figure]()
    for title, blocks in seconds.items():
        value = interval([scale * block for block in blocks])
        figures.append(Figure(title, value, "us", note=f"accuracy {results[title]['accuracy']:.3f}"))
    note = "weights: different, because a DataLoader draws another order"
    for title in list(CONTENDERS)[1:]:
        ratio = paired(seconds[PLAIN], seconds[title], lambda plain, other: plain / other)
        goal = None if title == LIMIT else ">= 1.5"
        figures.append(Figure(f"{title}: faster by", ratio, "x", goal, note, REMAINDERS.get(title, "")))
    return figures
