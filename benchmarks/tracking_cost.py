"""What it costs an update that a run can be followed.

Runs of a network of 32-64-10 with batches of 8 on one thread, in processes of their own, which take turns. All have
`log_every=50`, as by default. In each of them one thing is switched off in every other block, for what is compared
lies in one process then, whose memory is where it is: the accuracy of a batch, the function that adds up means, the
one that writes rows, the progress bar (stdout is a terminal, which another process reads), or a tracker's rows. Rows
are written every 50 updates, and a block is a whole multiple of that: the cost is per update, on the average.
"""

from __future__ import annotations

from typing import Any

from benchmarks.figures import Figure
from benchmarks.statistics import interval, paired
from benchmarks.turns import is_on, race

LOG_EVERY = 50
MEASURES = "hydrant.tasks.base.Task.measures"
LOCAL = ("optimizer.fused=true", f"log_every={LOG_EVERY}", "tracker=local")
RUNS: dict[str, dict[str, Any]] = {
    "metrics: the accuracy of every batch": {"words": LOCAL, "switched": [MEASURES]},
    "metrics: means of loss and accuracy, added up at every update": {
        "words": LOCAL,
        "switched": ["hydrant.metrics.Meter.add"],
    },
    "rows of metrics.jsonl": {"words": LOCAL, "switched": ["hydrant.trackers.record.Record.log"]},
    "the progress bar": {
        "words": LOCAL,
        "terminal": True,
        "switched": [f"hydrant.trackers.progress.Progress.{name}" for name in ("advance", "log")],
    },
    "TensorBoard": {
        "words": (*LOCAL, "tracker=tensorboard"),
        "switched": ["hydrant.trackers.tensorboard.TensorBoardTracker.log"],
    },
    "W&B offline": {
        "words": (*LOCAL, "tracker=wandb", "tracker.mode=offline"),
        "switched": ["hydrant.trackers.wandb.WandbTracker.log"],
    },
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
    "or the terminal take for it."
)


def measure(*, quick: bool) -> list[Figure]:
    """Of every means to follow a run what it adds to an update."""
    num_blocks, block_size = (4, LOG_EVERY) if quick else (120, 4 * LOG_EVERY)
    racing = {title: {"contender": "hydrant_run", "features": False, **own} for title, own in RUNS.items()}
    seconds, results = race(racing, num_blocks=num_blocks, block_size=block_size, num_warmup=5 * block_size)
    scale, figures = 1e6 / block_size, list[Figure]()
    is_same = len({result["digest"] for result in results.values()}) == 1
    note = "weights: in all runs the same, bit for bit" if is_same else "weights: others"
    for title, own in seconds.items():
        on, off = ([s for at, s in enumerate(own) if is_on(at) is wanted] for wanted in (True, False))
        added = paired(on, off, lambda more, less: (more - less) * scale)
        figures.append(Figure(title, added, "us", "<= 2", note, REMAINDER.get(title, OF_ROWS)))
    whole = interval([scale * s for at, s in enumerate(seconds["rows of metrics.jsonl"]) if is_on(at)])
    return [Figure("an update, with means and rows", whole, "us"), *figures]
