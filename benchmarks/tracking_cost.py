"""What it costs an update that a run can be followed.

Runs of a network of 32-64-10 with batches of 8 on one thread, each in a process of its own, which take turns. All have
`log_every=50`, as by default, and differ in one thing. Trackers are chosen by the config (W&B offline); the bar is
there because stdout is a terminal, which another process reads; and there are runs in which the function that writes
rows, or the one that adds up means, does nothing, or in which accuracy is not computed. Rows are written every 50
updates, and a block is a whole multiple of that: the cost is per update, on the average.
"""

from __future__ import annotations

from typing import Any

from benchmarks.figures import Figure
from benchmarks.statistics import paired
from benchmarks.turns import race

LOG_EVERY = 50
LOCAL = ("optimizer.fused=true", f"log_every={LOG_EVERY}", "tracker=local")
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"words": LOCAL},
    "without means": {"words": LOCAL, "idle": ["hydrant.metrics.Meter.add"]},
    "without accuracy": {"words": LOCAL, "measures": False},
    "without rows": {"words": LOCAL, "idle": ["hydrant.trackers.record.Record.log"]},
    "with bar": {"words": LOCAL, "terminal": True},
    "with TensorBoard": {"words": (*LOCAL, "tracker=tensorboard")},
    "with W&B": {"words": (*LOCAL, "tracker=wandb", "tracker.mode=offline")},
}
COMPARED = {
    "metrics: the accuracy of every batch": ("plain", "without accuracy"),
    "metrics: means of loss and accuracy, added up at every update": ("plain", "without means"),
    "rows of metrics.jsonl": ("plain", "without rows"),
    "the progress bar": ("with bar", "plain"),
    "TensorBoard": ("with TensorBoard", "plain"),
    "W&B offline": ("with W&B", "plain"),
}
REMAINDER = {
    "metrics: means of loss and accuracy, added up at every update": (
        "two scalars, of which each has to be detached or copied, 1 us of torch's own; adding them up is done for 64 "
        "updates at once."
    ),
    "metrics: the accuracy of every batch": (
        "operations of torch on a few numbers (argmax, ==, float, mean), of 1 to 3 us each, which is what it takes to "
        "launch them. The hand-written loop with accuracy pays the same."
    ),
}

OF_ROWS = (
    "a fiftieth of what a row costs: its JSON and the write of a line, about 0.1 ms, and what W&B's SDK, TensorBoard "
    "or the terminal take for it. Where the interval is wide, it is what blocks of two runs that are alike differ by."
)


def measure(*, quick: bool) -> list[Figure]:
    """Of every means to follow a run what it adds to an update."""
    num_blocks, block_size = (2, LOG_EVERY) if quick else (100, 4 * LOG_EVERY)
    racing = {
        title: {"contender": "hydrant_run", "features": False, **own} for title, own in VARIANTS.items()
    }
    seconds, results = race(racing, num_blocks=num_blocks, block_size=block_size, num_warmup=5 * block_size)
    scale = 1e6 / block_size
    whole = paired(seconds["plain"], seconds["plain"], lambda own, _: own * scale)
    figures = [Figure("an update, with means and rows", whole, "us")]
    for what, (more, less) in COMPARED.items():
        added = paired(seconds[more], seconds[less], lambda own, other: (own - other) * scale)
        is_same = results[more]["digest"] == results[less]["digest"]
        note = "weights: the same without, bit for bit" if is_same else "weights: others"
        figures.append(Figure(what, added, "us", "<= 2", note, REMAINDER.get(what, OF_ROWS)))
    return figures
