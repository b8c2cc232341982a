"""What one update costs besides what the hand-written loop does, in Hydrant and in its peers.

A network of 32-64-10 with batches of 8 and AdamW (fused), on one thread. "Full" is a cosine schedule, clipping, two
micro-batches an update, loss and accuracy over the updates, a progress bar, a row every 50 updates in a JSON file and,
in Hydrant, W&B offline; the hand-written loop beside it does the same by PyTorch's own means, tqdm and `json`.
"""

from __future__ import annotations

from typing import Any

from benchmarks.figures import Figure
from benchmarks.statistics import interval, paired
from benchmarks.turns import race

BARE = ("tracker=local", "log_every=null")
FULL = (
    "scheduler=cosine",
    "max_grad_norm=1.0",
    "micro_batch_size=4",
    "log_every=50",
    "tracker=wandb",
    "tracker.mode=offline",
)
CONTENDERS: dict[str, dict[str, Any]] = {
    "by hand": {"contender": "by_hand", "features": False},
    "Hydrant": {"contender": "hydrant_run", "features": False, "words": (*BARE, "optimizer.fused=true")},
    "Lightning Trainer": {"contender": "lightning_trainer", "features": False},
    "Lightning Fabric": {"contender": "fabric"},
    "Accelerate": {"contender": "accelerate"},
    "pytorch-accelerated": {"contender": "pytorch_accelerated"},
    "HF Trainer": {"contender": "hf_trainer"},
    "by hand, full": {"contender": "by_hand", "features": True},
    "Hydrant, full": {
        "contender": "hydrant_run",
        "features": True,
        "terminal": True,
        "words": (*FULL, "optimizer.fused=true"),
    },
    "Lightning Trainer, full": {"contender": "lightning_trainer", "features": True},
}
REMAINDER = (
    "By leaving out one part in turn, in one process: adding up the loss 12 us; seeding the generator for each "
    "micro-batch, so that any of them can be drawn again, 9; writing the learning rate 6; the contexts of precision "
    "and ranks 2. What torch puts around `zero_grad` and `step` is left out, which takes from it again. In blocks of "
    "100 updates it was 23 to 61 us: a block begins with caches that others have filled, which costs the larger "
    "program more."
)
LIMITS = ("by hand", "by hand, full")
GOALS = {"Hydrant": "<= 5", "Hydrant, full": "<= 20"}


def measure(*, quick: bool) -> list[Figure]:
    """Of every contender what it adds to the loop by hand, and of ours how it compares with peers."""
    num_blocks, block_size = (2, 5) if quick else (10, 300)
    seconds, results = race(
        CONTENDERS, num_blocks=num_blocks, block_size=block_size, num_warmup=2 * block_size
    )
    scale, figures, added = 1e6 / block_size, [], dict[str, list[float]]()
    for title, own in seconds.items():
        limit = LIMITS[title.endswith("full")]
        if title == limit:
            value = interval([scale * mine for mine in own])
            figures.append(Figure(title, value, "us", note="the whole update"))
            continue
        added[title] = [(mine - theirs) * scale for mine, theirs in zip(own, seconds[limit], strict=True)]
        is_same = results[title]["digest"] == results[limit]["digest"]
        note = "weights: the loop's, bit for bit" if is_same else "weights: others"
        figures.append(
            Figure(f"added by {title}", interval(added[title]), "us", GOALS.get(title), note, REMAINDER)
        )
    for title, goal in (("Lightning Trainer", "<= 0.1"), ("Accelerate", "<= 0.5")):
        ratio = paired(added["Hydrant"], added[title], lambda ours, theirs: ours / theirs)
        figures.append(Figure(f"added by Hydrant, as a share of {title}'s", ratio, "x", goal))
    return figures
