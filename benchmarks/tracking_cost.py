"""What it costs an update that a run can be followed.

Runs of a network of 32-64-10 with batches of 8 on one thread, in processes of their own, which take turns. All have
`log_every=50`, as by default. In each of them one thing is switched off in two of every four blocks, for what is
compared lies in one process then, whose memory is where it is: what tells which samples are right, the function that
adds up means, the one that writes rows, the progress bar (stdout is a terminal, which another process reads), or the
one that gives rows to a tracker. What a tracker's service does in a process of its own counts for neither. Rows are
written every 50 updates, and a block is a whole multiple of that: the cost is per update, on the average.
"""

from __future__ import annotations

from typing import Any

from benchmarks.figures import Figure
from benchmarks.statistics import interval
from benchmarks.turns import is_on, race

LOG_EVERY = 50
ROWS, BAR = "rows of metrics.jsonl", "the progress bar"
ACCURACY = "metrics: the accuracy of every batch"
MEANS = "metrics: means of loss and accuracy, added up at every update"
LOCAL = ("optimizer.fused=true", f"log_every={LOG_EVERY}", "tracker=local")
RUNS: dict[str, dict[str, Any]] = {
    ROWS: {"words": LOCAL, "switched": ["hydrant.trackers.record.Record.log"]},
    "rows to W&B, offline": {
        "words": (*LOCAL, "tracker=wandb", "tracker.mode=offline"),
        "switched": ["hydrant.trackers.wandb.WandbTracker.log"],
    },
    "rows to TensorBoard": {
        "words": (*LOCAL, "tracker=tensorboard"),
        "switched": ["hydrant.trackers.tensorboard.TensorBoardTracker.log"],
    },
    BAR: {
        "words": LOCAL,
        "terminal": True,
        "switched": [f"hydrant.trackers.progress.Progress.{name}" for name in ("advance", "log")],
    },
    MEANS: {"words": LOCAL, "switched": ["hydrant.metrics.Meter.add"]},
    ACCURACY: {"words": LOCAL, "switched": ["hydrant.tasks.base.Task.measures"]},
}
REMAINDER = {
    ROWS: (
        "written on its own, a row takes 50 us, of which an update's share is 1; more is what the updates after it "
        "find no longer in the caches, and the noise of the machine."
    ),
    BAR: "ten times a second, however many updates that are, tqdm draws the line, which takes 1 ms on a slow core.",
    MEANS: (
        "a scalar that has to be detached and eight flags that have to be copied, 0.7 and 1.5 us when called on their "
        "own again and again and several times that amid an update; they are added up for 64 updates at once."
    ),
    ACCURACY: (
        "argmax, == and, in the meter, a copy of eight flags, of 1 to 3 us each, which launching them takes; the "
        "means are for 64 updates at once."
    ),
}

OF_ROWS = "a fiftieth of a row: about 1 ms for the SDK of W&B or the library of TensorBoard, in Python, on a slow core."


def measure(*, quick: bool) -> list[Figure]:
    """Of every means to follow a run what it adds to an update."""
    num_blocks, block_size = (4, LOG_EVERY) if quick else (44, 4 * LOG_EVERY)
    racing = {title: {"contender": "hydrant_run", "features": False, **own} for title, own in RUNS.items()}
    seconds, results = race(racing, num_blocks=num_blocks, block_size=block_size, num_warmup=5 * block_size)
    scale, figures = 1e6 / block_size, list[Figure]()
    is_same = len({result["digest"] for result in results.values()}) == 1
    note = "weights: in all runs the same, bit for bit" if is_same else "weights: others"
    for title, own in seconds.items():
        fours = zip(*(own[at::4] for at in range(4)), strict=True)  # on, off, off, on: see turns.is_on
        added = interval(
            [scale * (first - second - third + fourth) / 2 for first, second, third, fourth in fours]
        )
        figures.append(Figure(title, added, "us", "<= 2", note, REMAINDER.get(title, OF_ROWS)))
    whole = interval([scale * s for at, s in enumerate(seconds[ROWS]) if is_on(at)])
    return [Figure("an update, with means and rows", whole, "us"), *figures]
