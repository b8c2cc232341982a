"""Overhead per update of Hydrant and other trainers, compared with a hand-written loop.

A network of 32-64-10 with batches of 8 and AdamW (fused), on one thread. "Full" adds a cosine schedule, clipping, two
micro-batches per update, means of loss and accuracy, a progress bar, a row every 50 updates in a JSON file and, in
Hydrant, W&B offline. The full hand-written loop does the same with plain PyTorch, tqdm and `json`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.figures import Figure
from benchmarks.statistics import interval, paired
from benchmarks.turns import hydrant, race

BARE = ("optimizer.fused=true", "tracker=local", "log_every=null")
FULL = (
    "optimizer.fused=true", "scheduler=cosine", "max_grad_norm=1.0", "micro_batch_size=4", "log_every=50",
    "tracker=wandb", "tracker.mode=offline",
)  # fmt: skip
CONTENDERS: dict[str, dict[str, Any]] = {
    "by hand": {"contender": "by_hand"},
    "Hydrant": hydrant(*BARE),
    "Lightning Trainer": {"contender": "lightning_trainer"},
    "Lightning Fabric": {"contender": "fabric"},
    "Accelerate": {"contender": "accelerate"},
    "pytorch-accelerated": {"contender": "pytorch_accelerated"},
    "HF Trainer": {"contender": "hf_trainer"},
    "by hand, full": {"contender": "by_hand", "features": True},
    "Hydrant, full": hydrant(*FULL, features=True, terminal=True),
    "Lightning Trainer, full": {"contender": "lightning_trainer", "features": True},
}
REMAINDER = (
    "Measured in one process by leaving out one part at a time: adding up the loss takes 12 us, seeding the generator "
    "for each micro-batch, which makes it reproducible, 9, writing the learning rate 6, the contexts of precision and "
    "ranks 2. Hydrant bypasses torch's wrappers of `zero_grad` and `step`, which saves time. With blocks of 100 "
    "updates, the overhead was 23 to 61 us, because each block starts with the caches of other processes, which "
    "costs a larger program more."
)
LIMITS = ("by hand", "by hand, full")
GOALS = {"Hydrant": "<= 5", "Hydrant, full": "<= 20"}


def measure(*, quick: bool) -> list[Figure]:
    """Measure what every contender adds to the hand-written loop, and the ratio of Hydrant's overhead to peers'."""
    num_blocks, block_size = (2, 5) if quick else (10, 300)
    seconds, results = race(
        CONTENDERS, num_blocks=num_blocks, block_size=block_size, num_warmup=2 * block_size
    )
    scale, figures, added = 1e6 / block_size, [], dict[str, list[float]]()
    for title, blocks in seconds.items():
        limit = LIMITS[title.endswith("full")]
        if title == limit:
            value = interval([scale * block for block in blocks])
            figures.append(Figure(title, value, "us", note="the whole update"))
            continue
        added[title] = [(block - loop) * scale for block, loop in zip(blocks, seconds[limit], strict=True)]
        is_same = results[title]["digest"] == results[limit]["digest"]
        note = "weights: the loop's, bit for bit" if is_same else "weights: different"
        value = interval(added[title])
        figures.append(Figure(f"added by {title}", value, "us", GOALS.get(title), note, REMAINDER))
    for title, goal in (("Lightning Trainer", "<= 0.1"), ("Accelerate", "<= 0.5")):
        ratio = paired(added["Hydrant"], added[title], lambda hydrant, peer: hydrant / peer)
        figures.append(Figure(f"added by Hydrant, as a share of {title}'s", ratio, "x", goal))
    return figures
