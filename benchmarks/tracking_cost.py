"""The cost of metrics, logging and tracking per update.

Runs of a network of 32-64-10 with batches of 8 on one thread, in separate processes that take turns. All have the
default `log_every=50`. In each run, one feature is switched off in two of every four blocks, so that both sides of the
comparison are in the same process with the same memory layout. The features are: accuracy, means, writing metrics
rows, the progress bar (stdout is a terminal that another process reads), and passing rows to a tracker. Work in a
tracker's separate service process is not counted. Rows are written every 50 updates and a block is a multiple of that,
so the cost is the average per update.
"""

from __future__ import annotations

from benchmarks.figures import Figure
from benchmarks.statistics import interval
from benchmarks.turns import hydrant, is_on, race

LOG_EVERY = 50
ROWS, BAR = "rows of metrics.jsonl", "the progress bar"
ACCURACY = "metrics: the accuracy of every batch"
MEANS = "metrics: means of loss and accuracy, added up at every update"
LOCAL = ("optimizer.fused=true", f"log_every={LOG_EVERY}", "tracker=local")
PROGRESS_BAR = [f"hydrant.extensions.progress.ProgressBar.{name}" for name in ("advance", "log")]
RUNS = {
    ROWS: hydrant(*LOCAL, switched=["hydrant.runs.record.JsonLines.append"]),
    "rows to W&B, offline": hydrant(
        *LOCAL,
        "tracker=wandb",
        "tracker.mode=offline",
        switched=["hydrant.extensions.wandb.tracker.WandbTracker.log"],
    ),
    "rows to TensorBoard": hydrant(
        *LOCAL, "tracker=tensorboard", switched=["hydrant.extensions.tensorboard.TensorBoardTracker.log"]
    ),
    BAR: hydrant(*LOCAL, terminal=True, switched=PROGRESS_BAR),
    MEANS: hydrant(*LOCAL, switched=["hydrant.training.metrics.Meter.add"]),
    ACCURACY: hydrant(*LOCAL, switched=["hydrant.tasks.base.Task.measures"]),
}
REMAINDER = {
    ROWS: (
        "Writing one row takes 50 us in isolation, 1 us per update. The rest is cache misses in the following "
        "updates, and the noise of the machine."
    ),
    BAR: "rich draws the line ten times a second, whatever the number of updates. It takes 0.2 ms.",
    MEANS: (
        "Detaching a scalar takes 0.7 us and copying eight flags 1.5 us in isolation, and several times that within "
        "an update. They are added up for 64 updates at once."
    ),
    ACCURACY: (
        "argmax, == and, in the meter, a copy of eight flags take 1 to 3 us each, the time to launch them. The "
        "means are computed for 64 updates at once."
    ),
}

ROW_REMAINDER = (
    "A fiftieth of a row, which takes about 1 ms in W&B's or TensorBoard's Python code on a slow core."
)


def measure(*, quick: bool) -> list[Figure]:
    """Measure what each feature adds to an update."""
    num_blocks, block_size = (4, LOG_EVERY) if quick else (44, 4 * LOG_EVERY)
    seconds, results = race(RUNS, num_blocks=num_blocks, block_size=block_size, num_warmup=5 * block_size)
    scale, figures = 1e6 / block_size, list[Figure]()
    is_same = len({result["digest"] for result in results.values()}) == 1
    note = "weights: equal in all runs, bit for bit" if is_same else "weights: different"
    for title, blocks in seconds.items():
        fours = zip(*(blocks[at::4] for at in range(4)), strict=True)  # on, off, off, on: see turns.is_on
        added = interval([scale * (a - b - c + d) / 2 for a, b, c, d in fours])
        figures.append(Figure(title, added, "us", "<= 2", note, REMAINDER.get(title, ROW_REMAINDER)))
    whole = interval([scale * block for at, block in enumerate(seconds[ROWS]) if is_on(at)])
    return [Figure("an update, with means and rows", whole, "us"), *figures]
